package etcd_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// visitors are the names in the certificates that clients have shown, in order.
type visitors struct {
	mu    sync.Mutex
	names []string
}

func (v *visitors) note(c tls.ConnectionState) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.names = append(v.names, c.PeerCertificates[0].Subject.CommonName)
	return nil
}

func (v *visitors) all() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.names)
}

// secureBench is an etcd behind a server that wants certificates, and a Store whose certificate files a test replaces.
type secureBench struct {
	t                *testing.T
	c                *cluster
	proxy            *proxy
	visitors         *visitors
	caFile, crt, key string
	log              *syncBuffer
	store            *etcd.Store
	updates          <-chan control.Update
}

// newSecureBench opens a Store that shows the certificate of one; its server takes those of both authorities.
func newSecureBench(t *testing.T, one, other *authority) *secureBench {
	t.Helper()
	b := &secureBench{t: t, c: newCluster(t), visitors: &visitors{}, log: new(syncBuffer)}
	b.c.SetConfig(t, []byte(config))
	server := one.issue(t, "server")
	cert, err := tls.LoadX509KeyPair(server.cert, server.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(append(slices.Clone(one.pem), other.pem...))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, VerifyConnection: b.visitors.note, SessionTicketsDisabled: true})
	if err != nil {
		t.Fatal(err)
	}
	b.proxy = serveProxy(t, l, b.c.socket())
	dir := t.TempDir()
	b.caFile, b.crt, b.key = filepath.Join(dir, "ca"), filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	b.install(b.caFile, one.pem)
	b.use(one.issue(t, "first"))
	b.store, err = etcd.Open(t.Context(), etcd.Config{Prefix: prefix, Endpoints: []string{"https://" + b.proxy.addr()},
		CAFile: b.caFile, CertFile: b.crt, KeyFile: b.key, Log: slog.New(slog.NewTextHandler(b.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.store.Close() })
	b.updates = watch(t, b.store)
	b.next("the first list", func(u control.Update) bool { return u.Reset })
	return b
}

// install replaces a file at once, as what renews certificates does.
func (b *secureBench) install(path string, text []byte) {
	b.t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
}

func (b *secureBench) use(i issued) {
	b.t.Helper()
	for from, to := range map[string]string{i.cert: b.crt, i.key: b.key} {
		text, err := os.ReadFile(from)
		if err != nil {
			b.t.Fatal(err)
		}
		b.install(to, text)
	}
}

// next waits for an update that is as wanted.
func (b *secureBench) next(what string, is func(control.Update) bool) {
	b.t.Helper()
	timeout := time.After(hang)
	for {
		select {
		case u := <-b.updates:
			if is(u) {
				return
			}
		case <-timeout:
			b.t.Fatalf("%s did not come:\n%s", what, b.log)
		}
	}
}

// lives fails unless a new entry is seen, by whatever connection. Then there is a stream.
func (b *secureBench) lives(n int) {
	b.t.Helper()
	key := fmt.Sprintf("10.3.%d.0-24", n)
	b.c.PutRaw(b.t, key, []byte(`{"PublicIP":"192.168.0.9","PublicIPv6":null}`))
	b.next(key, func(u control.Update) bool {
		return slices.ContainsFunc(u.Leases, func(l control.Lease) bool { return l.Key() == key })
	})
}

// reads fails unless ReadCertificates returns this.
func (b *secureBench) reads(want control.CertificateState, says string) {
	b.t.Helper()
	got, err := b.store.ReadCertificates()
	if got != want || (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
		b.t.Errorf("read %v, %v; want %v, %q", got, err, want, says)
	}
}

// visited fails unless these certificates, and no others, were shown since the last call.
func (b *secureBench) visited(want ...string) {
	b.t.Helper()
	all := b.visitors.all()
	b.visitors.mu.Lock()
	b.visitors.names = nil
	b.visitors.mu.Unlock()
	if !slices.Equal(slices.Compact(all), want) {
		b.t.Errorf("shown %q, want %q", all, want)
	}
}

// TestReadCertificates: renewed files are used by the next connection, and by all when they are read again. What is no
// certificate costs nothing.
func TestReadCertificates(t *testing.T) {
	t.Parallel()
	one, other := newAuthority(t), newAuthority(t)
	b := newSecureBench(t, one, other)
	b.visited("first")
	b.reads(control.CertificatesSame, "")
	b.lives(1)
	b.visited()
	// Renewed: another certificate of another authority, and a bundle of both.
	b.install(b.caFile, append(slices.Clone(other.pem), one.pem...))
	b.use(other.issue(t, "second"))
	b.lives(2)
	b.visited()
	b.reads(control.CertificatesChanged, "")
	b.next("another list", func(u control.Update) bool { return u.Reset })
	b.lives(3)
	b.visited("second")
	b.reads(control.CertificatesSame, "")
	// What cannot be used: the connection stays, and the next one is made as before.
	for _, file := range []string{b.caFile, b.crt, b.key} {
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.install(file, []byte("junk"))
		b.reads(control.CertificatesSame, file)
		os.Remove(file)
		b.reads(control.CertificatesSame, file)
		b.lives(4)
		b.proxy.cut()
		b.next("another list", func(u control.Update) bool { return u.Reset })
		b.install(file, good)
	}
	b.visited("second")
	if n := strings.Count(b.log.String(), "certificates for etcd cannot be used"); n != 3 {
		t.Errorf("%d warnings, want one for each file:\n%s", n, b.log)
	}
	// A connection that breaks takes up renewed files by itself.
	b.lives(5) // the stream is there: one that is not yet needs no other list
	b.use(one.issue(t, "third"))
	b.proxy.cut()
	b.next("another list", func(u control.Update) bool { return u.Reset })
	b.visited("third")
	b.reads(control.CertificatesSame, "")
}

// TestNoCertificates: without files there is nothing to read.
func TestNoCertificates(t *testing.T) {
	t.Parallel()
	s, err := etcd.Open(t.Context(), etcd.Config{Prefix: prefix, Endpoints: []string{"https://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := s.ReadCertificates(); got != control.CertificatesNone || err != nil {
		t.Errorf("read %v, %v", got, err)
	}
}
