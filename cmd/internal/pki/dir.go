package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Dir is the directory of an authority, on the first host.
type Dir string

// DefaultDir is where the authority is unless told otherwise.
const DefaultDir Dir = "/etc/overlayd/pki"

var (
	// ErrNone says that a directory has no authority.
	ErrNone = errors.New("there is no certificate authority")
	// ErrExists says that a directory has one already.
	ErrExists = errors.New("there is a certificate authority already")
	// ErrRotating says that its successor exists already.
	ErrRotating = errors.New("the next certificate authority exists already")
	// ErrNotRotating says that it has no successor.
	ErrNotRotating = errors.New("there is no next certificate authority")
)

// present and next are the files of the authorities, each with its key.
func (d Dir) present() string { return filepath.Join(string(d), "ca.pem") }
func (d Dir) next() string    { return filepath.Join(string(d), "ca-next.pem") }

// Files are the files with keys.
func (d Dir) Files() []string { return []string{d.present(), d.next()} }

// Init makes the directory and an authority in it.
func (d Dir) Init() error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	if !isMissing(d.present()) {
		return fmt.Errorf("%w: %s", ErrExists, d.present())
	}
	return makeAuthority(d.present())
}

// Rotate makes the next authority.
func (d Dir) Rotate() error {
	if _, err := d.load(); err != nil {
		return err
	}
	if !isMissing(d.next()) {
		return fmt.Errorf("%w: %s", ErrRotating, d.next())
	}
	return makeAuthority(d.next())
}

// Finish puts the next authority in the place of the present one, which is gone then.
func (d Dir) Finish() error {
	a, err := d.load()
	switch {
	case err != nil:
		return err
	case len(a) < 2:
		return fmt.Errorf("%w: %s", ErrNotRotating, d.next())
	}
	return os.Rename(d.next(), d.present())
}

func makeAuthority(path string) error {
	a, err := newAuthority(time.Now())
	if err != nil {
		return err
	}
	text, err := a.text()
	if err != nil {
		return err
	}
	return WriteFile(path, text)
}

// JoinFile makes a join file for a host.
func (d Dir) JoinFile(node string) ([]byte, error) {
	all, err := d.load()
	if err != nil {
		return nil, err
	}
	return joinFile(time.Now(), node, all[len(all)-1], certs(all))
}

// Authority returns the certificate of the authority that will be used longest.
func (d Dir) Authority() (*x509.Certificate, error) {
	all, err := d.load()
	if err != nil {
		return nil, err
	}
	return all[len(all)-1].Cert, nil
}

// load reads the present authority, and the next one if there is one.
func (d Dir) load() (all []*Authority, err error) {
	for i, path := range d.Files() {
		text, err := hostfile.Read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && i == 0:
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		}
		a, err := parseAuthority(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, a)
	}
	return all, nil
}

func certs(all []*Authority) (certs []*x509.Certificate) {
	for _, a := range all {
		certs = append(certs, a.Cert)
	}
	return certs
}
