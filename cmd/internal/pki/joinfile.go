package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// JoinFile is what a join file holds, besides a key.
type JoinFile struct {
	Node        string // the host that it is for
	Expires     time.Time
	Authorities []*x509.Certificate
}

// nodeName is what a host may be called in its certificate.
var nodeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// CheckNode refuses what cannot be the name of a host in a certificate.
func CheckNode(name string) error {
	if !nodeName().MatchString(name) {
		return fmt.Errorf("%q: want the name of a host: up to 63 letters, digits, dots, hyphens and underscores", name)
	}
	return nil
}

// joinFile makes the text of a join file: certificate and key of a client, and the authorities that it trusts.
func joinFile(now time.Time, node string, by *Authority, trusted []*x509.Certificate) ([]byte, error) {
	if err := CheckNode(node); err != nil {
		return nil, err
	}
	cert, key, err := by.issue(now, node, x509.ExtKeyUsageClientAuth, nil)
	if err != nil {
		return nil, err
	}
	text := fmt.Appendf(nil, "# overlayd join file of %s, valid until %s. Who can read it can change the overlay.\n", node, cert.NotAfter.UTC().Format(time.DateOnly))
	text = append(text, encodeCert(cert)...)
	secret, err := encodeKey(key)
	text = append(text, secret...)
	for _, c := range trusted {
		text = append(text, encodeCert(c)...)
	}
	return text, err
}

// ReadJoinFile reads a join file. It does not look at the time: a file that is too old is refused by the server.
func ReadJoinFile(path string) (f JoinFile, err error) {
	text, err := hostfile.Read(path)
	if err != nil {
		return f, err
	}
	if f, err = parseJoinFile(text); err != nil {
		return f, fmt.Errorf("%s is not a join file: %w", path, err)
	}
	return f, nil
}

func parseJoinFile(text []byte) (f JoinFile, err error) {
	certs, key, err := parse(text)
	switch {
	case err != nil:
		return f, err
	case len(certs) < 2:
		return f, errors.New("want a certificate, its key, and the certificate of its authority")
	case key == nil || !key.PublicKey.Equal(certs[0].PublicKey):
		return f, errors.New("the key of the first certificate is missing")
	}
	f = JoinFile{certs[0].Subject.CommonName, certs[0].NotAfter, certs[1:]}
	roots := x509.NewCertPool()
	for _, c := range f.Authorities {
		if !c.IsCA {
			return f, fmt.Errorf("the certificate of %q is of no authority", c.Subject.CommonName)
		}
		roots.AddCert(c)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: certs[0].NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return f, err
}
