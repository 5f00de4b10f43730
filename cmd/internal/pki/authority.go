package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

const (
	// ServerName is the name in the server's certificate.
	ServerName = "overlayd-store"

	// LeafValidity is how long a host's or the server's certificate is valid.
	LeafValidity = 365 * 24 * time.Hour
	// AuthorityValidity is how long an authority is valid.
	AuthorityValidity = 10 * LeafValidity
	// skew is how far a host's clock may be behind that of the host that issues.
	skew = time.Hour
)

// Authority is a certificate that issues others, and its key.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority that is valid from now on. Its name is its own, so that of two the right one is
// found.
func newAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	a := &Authority{key: key, Cert: &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("overlayd authority %.8x", serial.Bytes())},
		NotBefore: now.Add(-skew), NotAfter: now.Add(AuthorityValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.Cert, err = a.sign(a.Cert, &key.PublicKey)
	return a, err
}

// parseAuthority reads what text returned.
func parseAuthority(text []byte) (*Authority, error) {
	certs, key, err := parse(text)
	switch {
	case err != nil:
		return nil, err
	case len(certs) != 1 || !certs[0].IsCA:
		return nil, errors.New("want the certificate of one authority")
	case key == nil || !key.PublicKey.Equal(certs[0].PublicKey):
		return nil, errors.New("want the key of the certificate")
	}
	return &Authority{certs[0], key}, nil
}

// text is the certificate and the key in PEM.
func (a *Authority) text() ([]byte, error) {
	key, err := encodeKey(a.key)
	return append(encodeCert(a.Cert), key...), err
}

// issue makes a certificate and its key. It ends with the authority at the latest.
func (a *Authority) issue(now time.Time, name string, usage x509.ExtKeyUsage, addrs []netip.Addr) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-skew), NotAfter: now.Add(LeafValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true,
	}
	if cert.NotAfter.After(a.Cert.NotAfter) {
		cert.NotAfter = a.Cert.NotAfter
	}
	if usage == x509.ExtKeyUsageServerAuth {
		cert.DNSNames = []string{name}
	}
	for _, addr := range addrs {
		cert.IPAddresses = append(cert.IPAddresses, net.IP(addr.AsSlice()))
	}
	cert, err = a.sign(cert, &key.PublicKey)
	return cert, key, err
}

func (a *Authority) sign(cert *x509.Certificate, key *ecdsa.PublicKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.Cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", cert.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// newSerial returns a random serial number (RFC 5280, section 4.1.2.2: positive, at most 20 bytes).
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// The types of PEM blocks.
const (
	certBlock = "CERTIFICATE"
	keyBlock  = "EC PRIVATE KEY"
)

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: c.Raw})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// parse reads certificates and at most one key.
func parse(text []byte) (certs []*x509.Certificate, key *ecdsa.PrivateKey, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case certBlock:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			certs = append(certs, c)
		case keyBlock:
			if key != nil {
				return nil, nil, errors.New("there are two keys")
			}
			if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
				return nil, nil, errors.New("the key cannot be read") // its text might show some of it
			}
		}
	}
	return certs, key, nil
}
