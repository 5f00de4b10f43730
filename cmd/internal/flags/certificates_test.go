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

// endingIn makes a file with a certificate that ends after a while, and its key.
func endingIn(t *testing.T, left time.Duration) string { return lasting(t, -time.Hour, left) }

// lasting makes one with a certificate that begins after a while, too.
func lasting(t *testing.T, from, left time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cert.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(path, append(text, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})...), 0o600); err != nil {
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
	future := lasting(t, time.Hour, 31*24*time.Hour)
	for name, c := range map[string]struct {
		etcd  Etcd
		file  string
		left  time.Duration
		fix   string
		warns string
	}{
		"ended":         {Etcd{JoinFile: ended, CertFile: ended, KeyFile: ended}, ended, -time.Hour, "overlayd pki join-file", ended + " has ended"},
		"join file":     {Etcd{JoinFile: soon, CertFile: soon, KeyFile: soon}, soon, 29 * 24 * time.Hour, "overlayd pki join-file NODE, and copy the file to " + soon, soon + " ends soon"},
		"a certificate": {Etcd{CertFile: later, KeyFile: later}, later, 31 * 24 * time.Hour, "renew it", ""},
		"of the future": {Etcd{CertFile: future, KeyFile: future}, future, 31 * 24 * time.Hour, "renew it", future + " is not valid yet"},
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
	none := soon + ".none"
	for name, c := range map[string]struct {
		etcd Etcd
		says string
	}{
		"a missing file":                    {Etcd{CertFile: none, KeyFile: soon}, none},
		"a missing key":                     {Etcd{CertFile: soon, KeyFile: none}, none},
		"the key of another":                {Etcd{CertFile: soon, KeyFile: later}, "private key does not match"},
		"a join file without its authority": {Etcd{JoinFile: soon, CertFile: soon, KeyFile: soon, CAFile: soon}, pki.ErrNoAuthority.Error()},
		"an authority alone, gone":          {Etcd{CAFile: none}, none},
	} {
		if all := (&Flags{Etcd: c.etcd}).Certificates(); len(all) != 1 || !strings.Contains(all[0].Err, c.says) || !all[0].Expires.IsZero() {
			t.Errorf("%s: %+v", name, all)
		}
	}
	if all := (&Flags{Etcd: Etcd{CAFile: later}}).Certificates(); len(all) != 0 {
		t.Errorf("an authority alone: %+v", all)
	}
	if all := (&Flags{Etcd: Etcd{Embedded: true, ListenURL: "http://127.0.0.1:2379"}}).Certificates(); len(all) != 0 {
		t.Errorf("without any: %+v", all)
	}
}
