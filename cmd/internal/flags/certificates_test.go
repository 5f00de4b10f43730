package flags

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/pki"
)

// endingIn makes a certificate file that ends after a while.
func endingIn(t *testing.T, left time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCertificatesOfFlags: each kind of certificate is found by its flag, has its end and a remedy, and is warned of at start.
func TestCertificatesOfFlags(t *testing.T) {
	dir := pki.Dir(t.TempDir())
	if err := dir.Init(); err != nil {
		t.Fatal(err)
	}
	ended, soon, later := endingIn(t, -time.Hour), endingIn(t, 29*24*time.Hour), endingIn(t, 31*24*time.Hour)
	for name, c := range map[string]struct {
		etcd  Etcd
		file  string
		left  time.Duration
		fix   string
		warns string
	}{
		"ended":         {Etcd{JoinFile: ended, CertFile: ended}, ended, -time.Hour, "overlayd pki join-file", ended + " has ended"},
		"join file":     {Etcd{JoinFile: soon, CertFile: soon}, soon, 29 * 24 * time.Hour, "overlayd pki join-file NODE, and copy the file to " + soon, soon + " ends soon"},
		"a certificate": {Etcd{CertFile: later}, later, 31 * 24 * time.Hour, "renew it", ""},
		"the authority": {Etcd{Embedded: true, ListenURL: "https://192.0.2.1:2379", PKIDir: string(dir)}, string(dir), pki.AuthorityValidity, "overlayd pki rotate", ""},
	} {
		all := (&Flags{Etcd: c.etcd}).Certificates()
		if len(all) != 1 || all[0].File != c.file || all[0].Err != "" || !strings.Contains(all[0].Fix, c.fix) || (time.Until(all[0].Expires)-c.left).Abs() > time.Minute {
			t.Errorf("%s: %+v", name, all)
		}
		var log bytes.Buffer
		WarnOfCertificates(slog.New(slog.NewTextHandler(&log, nil)), all, time.Now())
		if (log.Len() > 0) != (c.warns != "") || !strings.Contains(log.String(), c.warns) {
			t.Errorf("%s: warned %q, want %q", name, &log, c.warns)
		}
	}
	if all := (&Flags{Etcd: Etcd{CertFile: soon + ".none"}}).Certificates(); len(all) != 1 || !strings.Contains(all[0].Err, "no such file") {
		t.Errorf("a missing file: %+v", all)
	}
	if all := (&Flags{Etcd: Etcd{Embedded: true, ListenURL: "http://127.0.0.1:2379"}}).Certificates(); len(all) != 0 {
		t.Errorf("without any: %+v", all)
	}
}
