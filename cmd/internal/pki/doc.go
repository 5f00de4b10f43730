// Package pki is the certificate authority of an embedded etcd that other hosts reach by TLS, so that nobody
// without a certificate of it gets an answer.
//
//	dir.go         Dir: the directory on the first host that has the authority, and how it is replaced
//	authority.go   Authority: a certificate that issues others, and its key
//	joinfile.go    the file by which another host joins
//	server.go      Server: the certificate that the etcd shows and the ones that it accepts; read again whenever the directory changes
//	file.go        reading and writing files with keys
//
// All keys are ECDSA P-256. The server's certificate is not on disk: the host with the authority's key issues
// it at start. Clients check the name [ServerName] and not the address of the server, so that hosts may
// change their addresses.
//
// # How an authority is replaced
//
// Dir.Rotate makes the next authority beside the present one. From then on the server accepts certificates of
// both. New join files are issued by the next authority, and trust both. When every host has such a file, Dir.Finish puts
// the next authority in the place of the present one. The server then has a certificate of it, accepts no others, and
// closes connections that were made with others.
package pki
