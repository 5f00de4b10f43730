package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// newDir makes a directory with an authority.
func newDir(t *testing.T) Dir {
	t.Helper()
	d := Dir(filepath.Join(t.TempDir(), "pki"))
	if err := d.Init(); err != nil {
		t.Fatal(err)
	}
	return d
}

// join makes a join file.
func join(t *testing.T, d Dir, node string) (path string, text []byte) {
	t.Helper()
	text, err := d.JoinFile(node)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "join.pem")
	if err := WriteFile(path, text); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// TestWriteFileNowhere: the error names the file, and no temporary one.
func TestWriteFileNowhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"none/node.pem": "no such file or directory", "taken": "file exists"} {
		path := filepath.Join(dir, name)
		if err := WriteFile(path, nil); err == nil || err.Error() != "write "+path+": "+want {
			t.Error(err)
		}
	}
}

// TestWriteFile: WriteFile replaces a file, and a link to a file. It writes to a device, to a FIFO and to an open file behind a link into /proc.
// These stay.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	open, err := os.OpenFile(in("open"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := errors.Join(os.WriteFile(in("file"), []byte("old"), 0o644), os.WriteFile(in("target"), []byte("old"), 0o644), os.Symlink(in("target"), in("link")),
		unix.Mkfifo(in("fifo"), 0o600), os.Symlink("fifo", in("link to fifo")), os.Symlink("/dev/null", in("link to device")),
		os.Symlink(fmt.Sprintf("/proc/self/fd/%d", open.Fd()), in("stdout")), os.Mkdir(in("dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(in("fifo"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	for _, c := range []struct {
		path string
		to   *os.File // where it arrives, and path stays; nil: in a file at path
		text string
	}{
		{"new", nil, "new"}, {"file", nil, "new"}, {"link", nil, "new"}, {"fifo", fifo, "new"}, {"link to fifo", fifo, "new"}, {"link to device", nil, ""},
		{"stdout", open, "new"}, {"stdout", open, "new"},
	} {
		before, _ := os.Lstat(in(c.path))
		if err := WriteFile(in(c.path), []byte("new")); err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		after, err := os.Lstat(in(c.path))
		if err != nil {
			t.Fatal(err)
		}
		stays := c.to != nil || c.text == ""
		if stays != os.SameFile(before, after) || !stays && after.Mode() != 0o600 {
			t.Errorf("%s: stays: %t, mode %s", c.path, os.SameFile(before, after), after.Mode())
			continue
		}
		got := make([]byte, len(c.text))
		if c.to != nil {
			_, err = io.ReadFull(c.to, got)
		} else {
			got, err = os.ReadFile(in(c.path))
		}
		if err != nil || string(got) != c.text {
			t.Errorf("%s: %q, %v", c.path, got, err)
		}
	}
	if text, err := os.ReadFile(in("target")); err != nil || string(text) != "old" {
		t.Errorf("the target of the link: %q, %v", text, err)
	}
	if err := WriteFile(in("dir"), nil); err == nil {
		t.Error("a directory is replaced")
	}
}

// TestDir: the authority is there once, and replaced in two steps.
func TestDir(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "a", "pki"))
	for _, step := range []struct {
		name string
		do   func() error
		want error
	}{
		{"join without", func() error { _, err := d.JoinFile("a"); return err }, ErrNone},
		{"rotate without", d.Rotate, ErrNone},
		{"finish without", d.Finish, ErrNone},
		{"init", d.Init, nil},
		{"init again", d.Init, ErrExists},
		{"finish too early", d.Finish, ErrNotRotating},
		{"rotate", d.Rotate, nil},
		{"rotate again", d.Rotate, ErrRotating},
		{"finish", d.Finish, nil},
		{"finish again", d.Finish, ErrNotRotating},
		{"rotate once more", d.Rotate, nil},
	} {
		if err := step.do(); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
	}
	for path, want := range map[string]fs.FileMode{string(d): fs.ModeDir | 0o700, d.present(): 0o600, d.next(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
	if left, err := filepath.Glob(string(d) + "/.*"); len(left) > 0 || err != nil {
		t.Errorf("left %q", left)
	}
}

// TestAuthorityFiles: what is not an authority is refused by the name of its file, and shows no key.
func TestAuthorityFiles(t *testing.T) {
	d, other := newDir(t), newDir(t)
	good, err := os.ReadFile(d.present())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(other.present())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, _ := strings.Cut(string(good), "-----BEGIN EC")
	_, foreignKey, _ := strings.Cut(string(foreign), "-----BEGIN EC")
	_, leaf := join(t, d, "a")
	for name, text := range map[string]string{
		"empty": "", "junk": "junk", "no key": cert, "no certificate": "-----BEGIN EC" + key, "another key": cert + "-----BEGIN EC" + foreignKey,
		"two keys": string(good) + "-----BEGIN EC" + foreignKey, "a leaf": string(leaf), "cut": string(good[:len(good)-100]), "two": string(good) + string(foreign),
		"large": strings.Repeat("\n", hostfile.MaxLen) + string(good),
	} {
		if err := os.WriteFile(d.present(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.JoinFile("a"); err == nil || !strings.Contains(err.Error(), d.present()) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), strings.TrimSpace(key)[20:40]) {
			t.Errorf("%s: shows the key: %v", name, err)
		}
	}
}

// TestJoinFileHolds: a certificate of a client for a year, and the authorities.
func TestJoinFileHolds(t *testing.T) {
	d := newDir(t)
	path, text := join(t, d, "node-1.example")
	f, err := ReadJoinFile(path)
	if err != nil || f.Node != "node-1.example" || len(f.Authorities) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	if left := time.Until(f.Expires); left < LeafValidity-time.Minute || left > LeafValidity {
		t.Errorf("valid for %s", left)
	}
	certs, key, err := parse(text)
	if err != nil || key.Curve != elliptic.P256() || certs[0].PublicKey.(*ecdsa.PublicKey).Curve != elliptic.P256() || certs[0].IsCA {
		t.Errorf("%v, %+v", err, certs[0])
	}
	if !slices.Equal(certs[0].ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("it could be a server: %v", certs[0].ExtKeyUsage)
	}
	if end := f.Authorities[0].NotAfter; time.Until(end) < 9*LeafValidity {
		t.Errorf("the authority ends %s", end)
	}
	for _, name := range []string{"", "-a", "a b", "a/b", "a\n", strings.Repeat("a", 64), "ä"} {
		if _, err := d.JoinFile(name); err == nil || !strings.Contains(err.Error(), "want the name of a host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestBadJoinFiles: each is refused by name.
func TestBadJoinFiles(t *testing.T) {
	d, other := newDir(t), newDir(t)
	path, text := join(t, d, "a")
	_, foreign := join(t, other, "a")
	cert := func(text []byte, n int) string {
		certs, _, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(encodeCert(certs[n]))
	}
	_, key, _ := parse(text)
	own, _ := encodeKey(key)
	server, err := ofServer(d)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "junk": "junk", "no authority": cert(text, 0) + string(own), "no key": cert(text, 0) + cert(text, 1),
		"another key": cert(foreign, 0) + string(own) + cert(foreign, 1), "another authority": cert(text, 0) + string(own) + cert(foreign, 1),
		"a leaf as authority": cert(text, 0) + string(own) + cert(text, 0), "the authority first": cert(text, 1) + string(own) + cert(text, 0),
		"of a server": server,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadJoinFile(path); err == nil || !strings.Contains(err.Error(), path+" is not a join file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadJoinFile(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// ofServer returns a join file that has the certificate of a server.
func ofServer(d Dir) (string, error) {
	all, err := d.load()
	if err != nil {
		return "", err
	}
	cert, key, err := all[0].issue(time.Now(), ServerName, x509.ExtKeyUsageServerAuth, nil)
	if err != nil {
		return "", err
	}
	text, err := encodeKey(key)
	return string(encodeCert(cert)) + string(text) + string(encodeCert(all[0].Cert)), err
}

// TestLeafEndsWithItsAuthority: a certificate is not valid for longer.
func TestLeafEndsWithItsAuthority(t *testing.T) {
	a, err := newAuthority(time.Now().Add(-AuthorityValidity + time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cert, _, err := a.issue(time.Now(), "a", x509.ExtKeyUsageClientAuth, nil)
	if err != nil || !cert.NotAfter.Equal(a.Cert.NotAfter) {
		t.Errorf("%v, %v, want %v", err, cert.NotAfter, a.Cert.NotAfter)
	}
}

// bench is a server whose clock and addresses a test moves.
type bench struct {
	*Server
	clock time.Time
	addrs []netip.Addr
	log   strings.Builder
}

func newBench(t *testing.T, d Dir) *bench {
	t.Helper()
	b := &bench{clock: time.Now(), addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	b.Server = &Server{dir: d, log: slog.New(slog.NewTextHandler(&b.log, nil)), now: func() time.Time { return b.clock },
		addresses: func() ([]netip.Addr, error) { return b.addrs, nil }}
	return b
}

// config returns the config after a while.
func (b *bench) config(t *testing.T, later time.Duration) *tls.Config {
	t.Helper()
	b.clock = b.clock.Add(later)
	c, err := b.Config()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestServerConfig: it is another one when something has changed, which is looked at once a second.
func TestServerConfig(t *testing.T) {
	d := newDir(t)
	b := newBench(t, d)
	first := b.config(t, 0)
	if b.config(t, time.Hour) != first {
		t.Error("another one, and nothing has changed")
	}
	b.addrs = append(b.addrs, netip.MustParseAddr("2001:db8::1"))
	if b.config(t, settled/2) != first {
		t.Error("looked again too early")
	}
	second := b.config(t, settled)
	leaf := second.Certificates[0].Leaf
	if second == first || leaf.VerifyHostname("2001:db8::1") != nil || leaf.VerifyHostname("192.0.2.1") != nil || leaf.VerifyHostname(ServerName) != nil || leaf.VerifyHostname("192.0.2.2") == nil {
		t.Errorf("addresses %v, names %v", leaf.IPAddresses, leaf.DNSNames)
	}
	if err := d.Rotate(); err != nil {
		t.Fatal(err)
	}
	third := b.config(t, settled)
	if third == second || third.Certificates[0].Leaf.CheckSignatureFrom(b.made.by) != nil || b.made.next == nil {
		t.Error("not of the present authority, beside the next")
	}
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	fourth := b.config(t, settled)
	if fourth == third || third.ClientCAs.Equal(fourth.ClientCAs) || b.made.next != nil {
		t.Error("the old authority is still taken")
	}
	if fifth := b.config(t, LeafValidity/2+time.Hour); fifth == fourth || time.Until(fifth.Certificates[0].Leaf.NotAfter) < LeafValidity {
		t.Error("not renewed after half a year")
	}
	if n := strings.Count(b.log.String(), "\n"); n != 2 || !strings.Contains(b.log.String(), whyAuthorities) {
		t.Errorf("want a line for each change of authorities:\n%s", &b.log)
	}
}

// TestClockIsSet: a host may start with a wrong clock, which a time service sets right. Clients do not refuse the certificate after that.
func TestClockIsSet(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"behind": -2 * LeafValidity, "ahead": 8 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newDir(t))
			right := b.clock
			b.clock = right.Add(wrong)
			if _, err := b.Config(); err != nil {
				t.Fatal(err)
			}
			if text := b.made.renew.String(); strings.Contains(text, "m=") {
				t.Errorf("%s is compared by the monotonic clock, which nobody sets", text)
			}
			b.clock = right
			c, err := b.Config()
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(b.made.by)
			if _, err := c.Certificates[0].Leaf.Verify(x509.VerifyOptions{DNSName: ServerName, Roots: roots, CurrentTime: right}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServerKeepsWhatItHas: a directory that cannot be read costs a line in the log, and nothing else.
func TestServerKeepsWhatItHas(t *testing.T) {
	d := newDir(t)
	b := newBench(t, d)
	was := b.config(t, 0)
	if err := os.WriteFile(d.present(), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if b.config(t, settled) != was {
			t.Error("another config")
		}
	}
	if n := strings.Count(b.log.String(), d.present()); n != 1 {
		t.Errorf("%d lines:\n%s", n, &b.log)
	}
	if _, err := OpenServer(d, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("opened with junk")
	}
}

// TestHandshake: who has a join file and finds the right name is let in, and nobody else; neither is a server that only has
// a join file.
func TestHandshake(t *testing.T) {
	d, other := newDir(t), newDir(t)
	s, err := OpenServer(d, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client := func(path, name string) *tls.Config {
		f, err := ReadJoinFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.LoadX509KeyPair(path, path)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		for _, c := range f.Authorities {
			roots.AddCert(c)
		}
		return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, ServerName: name}
	}
	member, _ := join(t, d, "a")
	stranger, _ := join(t, other, "a")
	none := client(member, ServerName)
	none.Certificates = nil
	foreign := client(member, ServerName)
	foreign.Certificates = client(stranger, ServerName).Certificates
	old := client(member, ServerName)
	old.MaxVersion = tls.VersionTLS12
	fake := &tls.Config{Certificates: client(member, ServerName).Certificates, ClientAuth: tls.RequireAnyClientCert}
	serve := func() *tls.Config {
		c, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		want           bool
	}{
		{"a member", serve(), client(member, ServerName), true},
		{"another name", serve(), client(member, "other"), false},
		{"no certificate", serve(), none, false},
		{"a certificate of another cluster", serve(), foreign, false},
		{"TLS 1.2", serve(), old, false},
		{"a member as server", fake, client(member, ServerName), false},
	} {
		if err := shake(c.server, c.client); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// shake does a handshake of two ends.
func shake(server, client *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		c := tls.Client(b, client)
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	c := tls.Server(a, server)
	err := c.Handshake()
	if err == nil {
		_, err = c.Write([]byte{1})
	}
	a.Close()
	return errors.Join(err, <-done)
}

// FuzzJoinFile: no text brings it down, and what is taken for one holds what it says.
func FuzzJoinFile(f *testing.F) {
	d := Dir(f.TempDir())
	if err := d.Init(); err != nil {
		f.Fatal(err)
	}
	text, err := d.JoinFile("a")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, text []byte) {
		if j, err := parseJoinFile(text); err == nil && (len(j.Authorities) == 0 || j.Expires.IsZero()) {
			t.Errorf("%+v", j)
		}
	})
}
