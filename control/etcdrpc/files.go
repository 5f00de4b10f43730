package etcdrpc

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// certFiles are the certificate files of a Config. They are read again for every handshake, so that renewed ones are
// taken up without a restart. If they cannot be used, because somebody is just writing them, the last ones that could are.
type certFiles struct {
	cfg Config

	mu      sync.Mutex
	last    contents
	notices pace.Notices // of files that cannot be used
}

// contents are what the files held at one time.
type contents struct {
	tls *tls.Config
	own *x509.Certificate // that is shown to servers; nil: none
	sum fileSum
}

// fileSum is a checksum of all that the files hold.
type fileSum [sha256.Size]byte

// openFiles reads the files for the first time. It returns nil if cfg names none: https endpoints are then checked
// against the system's authorities.
func openFiles(cfg Config) (*certFiles, error) {
	if cfg.CAFile == "" && cfg.CertFile == "" && cfg.KeyFile == "" {
		return nil, nil
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("etcd certificate file %q and key file %q: want both or none", cfg.CertFile, cfg.KeyFile)
	}
	f := &certFiles{cfg: cfg}
	_, err := f.read()
	return f, err
}

// tls returns what was read last, nil if there are no files.
func (f *certFiles) tls() *tls.Config {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last.tls
}

// current reads the files for a handshake.
func (f *certFiles) current(log *slog.Logger) contents {
	c, err := f.read()
	if err == nil {
		return c
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if due, _ := f.notices.Due(time.Now(), pace.Notice{Text: err.Error()}); len(due) > 0 {
		log.Warn("certificates for etcd cannot be used: connecting with those that were read before", "err", err)
	}
	return f.last
}

// read reads the files. An error names the one that cannot be used.
func (f *certFiles) read() (c contents, err error) {
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.cfg.ServerName}
	var pems [3][]byte
	names := [...]string{f.cfg.CAFile, f.cfg.CertFile, f.cfg.KeyFile}
	for i, name := range names {
		if name == "" {
			continue
		}
		if same := slices.Index(names[:i], name); same >= 0 { // read once, so that all of it is of one time
			pems[i] = pems[same]
			continue
		}
		if pems[i], err = hostfile.Read(name); err != nil {
			return c, fmt.Errorf("read etcd %s: %w", [...]string{"CA file", "certificate file", "key file"}[i], err)
		}
	}
	if err := errors.Join(f.trust(c.tls, pems[0]), f.identify(&c, pems[1], pems[2])); err != nil {
		return c, err
	}
	c.sum = sha256.Sum256(fmt.Appendf(nil, "%q", pems))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = c
	return c, nil
}

// trust has t check servers against the authorities of the CA file, or the system's without one.
func (f *certFiles) trust(t *tls.Config, ca []byte) error {
	if f.cfg.CAFile == "" {
		return nil
	}
	t.RootCAs = x509.NewCertPool()
	if f.cfg.CAFile == f.cfg.CertFile {
		ca = authorities(ca)
	}
	if !t.RootCAs.AppendCertsFromPEM(ca) {
		return fmt.Errorf("etcd CA file %q holds no PEM certificate", f.cfg.CAFile)
	}
	return nil
}

// authorities returns the certificates of authorities in a file that has others too.
func authorities(text []byte) (ca []byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.IsCA {
			ca = append(ca, pem.EncodeToMemory(block)...)
		}
	}
	return ca
}

// identify has c show servers the certificate, if there is one.
func (f *certFiles) identify(c *contents, certificate, key []byte) error {
	if f.cfg.CertFile == "" {
		return nil
	}
	cert, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("load etcd certificate file %q and key file %q: %w", f.cfg.CertFile, f.cfg.KeyFile, err)
	}
	c.own = cert.Leaf
	c.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	return nil
}

// part says which file is involved in a refusal; empty: none is.
func (f *certFiles) part(why error) string {
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.last.own
	switch {
	case why == control.ErrUntrusted && f.cfg.CAFile != "":
		return " by the authorities in " + f.cfg.CAFile
	case why != control.ErrNoAccess || own == nil:
		return ""
	}
	return fmt.Sprintf(" than that in %s (of %q, by %q, %s)", f.cfg.CertFile, own.Subject.CommonName, own.Issuer.CommonName, validity(own, time.Now().UTC()))
}

// validity says until when a certificate is valid, or why it is not.
func validity(c *x509.Certificate, now time.Time) string {
	until := c.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case now.Before(c.NotBefore):
		return fmt.Sprintf("not valid before %s, the clock of this host says %s", c.NotBefore.UTC().Format(time.RFC3339), now.Format(time.RFC3339))
	case !now.Before(c.NotAfter):
		return "which has ended on " + until
	}
	return "valid until " + until
}
