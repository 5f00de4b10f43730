package etcdrpc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestOneFile: one file can hold the certificate, its key and the authorities. The certificate itself does not count as
// an authority: whoever has its key must not be taken for the server.
func TestOneFile(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	make := func(isCA bool) (*x509.Certificate, []byte) {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: isCA, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	_, leaf := make(false)
	one, first := make(true)
	two, second := make(true)
	path := filepath.Join(t.TempDir(), "join.pem")
	text := append(append(append(append([]byte("# for people\n"), leaf...), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...), first...), second...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(Config{CAFile: path, CertFile: path, KeyFile: path, ServerName: "store"})
	if err != nil {
		t.Fatal(err)
	}
	want := x509.NewCertPool()
	want.AddCert(one)
	want.AddCert(two)
	if c := f.tls(); !c.RootCAs.Equal(want) || c.ServerName != "store" || c.GetClientCertificate == nil {
		t.Errorf("%+v", c)
	}
	// Files of their own: what is in the CA file is trusted, whatever it is.
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, leaf, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFiles(Config{CAFile: ca, CertFile: path, KeyFile: path}); err != nil {
		t.Error(err)
	}
	if _, err := openFiles(Config{CAFile: ca, CertFile: ca, KeyFile: path}); err == nil {
		t.Error("a file without an authority is taken")
	}
}
