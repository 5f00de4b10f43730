// Package pki is the certificate authority of an embedded etcd that other hosts reach by TLS, so that nobody
// without a certificate of it gets an answer.
//
//	dir.go         Dir: the directory on the first host that has the authority, and how it is replaced
//	authority.go   Authority: a certificate that issues others, and its key
//	joinfile.go    the file by which another host joins
//	server.go      Server: what the etcd shows and asks for, made of the directory whenever that changes
//	file.go        reading and writing files with keys
//
// All keys are ECDSA P-256. The server's certificate is on no disk: whoever has the authority's key issues
// it at start. Clients do not check the address of the server but the name [ServerName], so that hosts may
// change their addresses.
//
// # How an authority is replaced
//
// Dir.Rotate makes the next authority beside the present one. From then on the server takes certificates of
// both, and join files are of the next one and trust both. When every host has such a file, Dir.Finish puts
// the next one in the place of the present one: the server then has a certificate of it, takes no others, and
// closes connections that were made with others.
package pki
