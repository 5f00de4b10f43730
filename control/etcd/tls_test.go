package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// TestTLS has a server that wants a certificate of its clients, or none.
func TestTLS(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	ca := newAuthority(t)
	server := ca.issue(t, "server")
	ca.issue(t, "client")
	stranger := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.pem)
	cert, err := tls.LoadX509KeyPair(server.cert, server.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.RequireAndVerifyClientCert} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert},
			NextProtos: []string{"h2"}, ClientAuth: auth, ClientCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		p := serveProxy(t, l, c.socket())
		get := func(cfg etcd.Config) error {
			cfg.Prefix = prefix
			if cfg.Endpoints == nil {
				cfg.Endpoints = []string{"https://" + p.addr()}
			}
			s, err := etcd.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, err = s.Network(t.Context())
			return err
		}
		if err := get(etcd.Config{CAFile: ca.file, CertFile: ca.file + ".client", KeyFile: ca.file + ".client.key"}); err != nil {
			t.Errorf("%v, with a certificate: %v", auth, err)
		}
		if err := get(etcd.Config{Endpoints: []string{p.addr()}, CAFile: ca.file, CertFile: ca.file + ".client", KeyFile: ca.file + ".client.key"}); err != nil {
			t.Errorf("%v, without a scheme: %v", auth, err)
		}
		if err := get(etcd.Config{CAFile: ca.file}); (err == nil) != (auth == tls.NoClientCert) {
			t.Errorf("%v, with the CA alone: %v", auth, err)
		}
		_, port, _ := net.SplitHostPort(p.addr())
		elsewhere := []string{"https://localhost:" + port} // which is not in the server's certificate
		if err := get(etcd.Config{Endpoints: elsewhere, ServerName: "store", CAFile: ca.file, CertFile: ca.file + ".client", KeyFile: ca.file + ".client.key"}); err != nil {
			t.Errorf("%v, at another address: the name does not decide: %v", auth, err)
		}
		for name, cfg := range map[string]etcd.Config{"another CA": {CAFile: stranger.file}, "the system's authorities": {}} {
			if err := get(cfg); err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("%v, with %s: %v, want an error about the certificate", auth, name, err)
			}
		}
	}
}

// authority is a certificate authority with its certificate in file.
type authority struct {
	file string
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

type issued struct{ cert, key string }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{file: filepath.Join(t.TempDir(), "ca"), key: key}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	a.pem = a.sign(t, a.cert, key, a.file)
	return a
}

// issue makes a certificate for 127.0.0.1 and "store" beside the authority's file.
func (a *authority) issue(t *testing.T, name string) issued {
	t.Helper()
	return a.issueFrom(t, name, time.Time{}, time.Now().Add(time.Hour))
}

func (a *authority) issueFrom(t *testing.T, name string, begin, end time.Time) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := issued{a.file + "." + name, a.file + "." + name + ".key"}
	a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"store"}, NotBefore: begin, NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, key, i.cert)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(i.key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func (a *authority) sign(t *testing.T, cert *x509.Certificate, key *ecdsa.PrivateKey, file string) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestRefusedTLS: an etcd that runs is not said to be away if the two sides do not agree on TLS.
func TestRefusedTLS(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	ca, stranger := newAuthority(t), newAuthority(t)
	load := func(i issued) tls.Certificate {
		cert, err := tls.LoadX509KeyPair(i.cert, i.key)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	cert := load(ca.issue(t, "server"))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.pem)
	serve := func(cert tls.Certificate, auth tls.ClientAuthType, version uint16) string {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, ClientAuth: auth,
			MaxVersion: version, ClientCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		return serveProxy(t, l, c.socket()).addr()
	}
	// With TLS 1.2 it tells a client in the handshake that its certificate is wanted, with 1.3 afterwards.
	proxy := func(auth tls.ClientAuthType) string { return serve(cert, auth, tls.VersionTLS12) }
	verify := "https://" + serve(cert, tls.RequireAndVerifyClientCert, tls.VersionTLS13)
	ended := ca.issueFrom(t, "ended", time.Time{}, time.Now().Add(-time.Hour))
	early := ca.issueFrom(t, "early", time.Date(2999, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2999, 2, 1, 0, 0, 0, 0, time.UTC))
	_, port, _ := net.SplitHostPort(proxy(tls.NoClientCert))
	late := "https://" + serve(load(ended), tls.NoClientCert, tls.VersionTLS12)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, endpoint, ca string
		own                issued
		want               error
		says               string
	}{
		{"no authority", "https://" + proxy(tls.NoClientCert), "", issued{}, control.ErrUntrusted, ""},
		{"another authority", "https://" + proxy(tls.NoClientCert), stranger.file, issued{}, control.ErrUntrusted, "by the authorities in " + stranger.file},
		{"another name", "https://localhost:" + port, ca.file, issued{}, control.ErrOtherName, "name or address: connection"},
		{"ended", late, ca.file, issued{}, control.ErrNotValidNow, "valid yet: connection"},
		{"no certificate", "https://" + proxy(tls.RequireAnyClientCert), ca.file, issued{}, control.ErrNoAccess, ""},
		{"no certificate, TLS 1.3", verify, ca.file, issued{}, control.ErrNoAccess, ""},
		{"a stranger's certificate", verify, ca.file, stranger.issue(t, "node2"), control.ErrNoAccess,
			"the store wants another certificate of this host than that in " + stranger.file + `.node2 (of "node2", by "ca", valid until `},
		{"a certificate that has ended", verify, ca.file, ended, control.ErrNoAccess, `(of "ended", by "ca", which has ended on `},
		{"a certificate of the future", verify, ca.file, early, control.ErrNoAccess, `(of "early", by "ca", not valid before 2999-01-02T03:04:05Z, the clock of this host says ` + time.Now().UTC().Format("2006-")},
		{"TLS without need", "https://" + serveProxy(t, plain, c.socket()).addr(), ca.file, issued{}, control.ErrScheme, ""},
		{"no TLS", "http://" + proxy(tls.NoClientCert), "", issued{}, control.ErrScheme, ""},
	} {
		s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{tc.endpoint}, CAFile: tc.ca, CertFile: tc.own.cert, KeyFile: tc.own.key, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Network(t.Context())
		s.Close()
		if !errors.Is(err, tc.want) || strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), tc.says) || control.Reason(err) != control.ReasonUnreachable {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
