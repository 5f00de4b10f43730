package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// ErrNoAuthority says that a file has no certificate of an authority.
var ErrNoAuthority = errors.New("no certificate of an authority")

// ReadClient reads the files by which a client connects: its certificate, which it returns, the key, and the authorities that it trusts.
// Each may be "", and all may be one file. An error tells why a connection cannot be made with them, as package etcdrpc judges, too.
func ReadClient(certFile, keyFile, caFile string) (own *x509.Certificate, err error) {
	if certFile != "" {
		if own, err = readPair(certFile, keyFile); err != nil {
			return nil, err
		}
	}
	if caFile == "" {
		return own, nil
	}
	text, err := hostfile.Read(caFile)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (c.IsCA || caFile != certFile) {
			return own, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", caFile, ErrNoAuthority)
}

// readPair reads a certificate and its key.
func readPair(certFile, keyFile string) (*x509.Certificate, error) {
	cert, err := hostfile.Read(certFile)
	if err != nil {
		return nil, err
	}
	key, err := hostfile.Read(keyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	switch {
	case err != nil && keyFile != certFile:
		return nil, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	return pair.Leaf, nil
}
