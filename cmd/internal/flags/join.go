package flags

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/pki"
)

// ErrExposed says that an embedded etcd would answer everybody who reaches this host.
var ErrExposed = errors.New("whoever reaches that address could change the overlay")

// maxSocketPath is how long the path of a Unix socket may be, in bytes (unix(7), less the zero at its end).
const maxSocketPath = 107

// ownSocket is where this host itself reaches an embedded etcd: in its data directory, which is its user's alone, without a certificate.
// package embedded calls it client.sock.
func (o *Etcd) ownSocket(p *problems) string {
	dir, err := filepath.Abs(o.DataDir)
	path := filepath.Join(dir, "client.sock")
	if p.add(err); len(path) > maxSocketPath {
		p.bad("etcd-data-dir", o.DataDir, fmt.Sprintf("want a path of at most %d bytes: there is a socket in it", maxSocketPath-len("/client.sock")))
	}
	for _, file := range []struct {
		flag string
		path *string
	}{{"join-file", &o.JoinFile}, {"etcd-cafile", &o.CAFile}, {"etcd-certfile", &o.CertFile}, {"etcd-keyfile", &o.KeyFile}} {
		if *file.path != "" {
			p.warn(fmt.Sprintf("--%s %s is not used: this host needs no certificate for its own etcd", file.flag, *file.path), "leave it out, or give --etcd-endpoints")
			*file.path = ""
		}
	}
	return "unix://" + path
}

// checkJoinFile makes the certificate files of --join-file.
func (o *Etcd) checkJoinFile(p *problems) {
	if o.JoinFile == "" {
		return
	}
	for _, other := range []struct{ flag, path string }{{"etcd-cafile", o.CAFile}, {"etcd-certfile", o.CertFile}, {"etcd-keyfile", o.KeyFile}} {
		if other.path != "" && other.path != o.JoinFile { // which it is if they are checked twice
			p.bad("join-file", o.JoinFile, fmt.Sprintf("leave out --%s %s: the join file holds certificate, key and authority", other.flag, other.path))
		}
	}
	if _, err := pki.ReadJoinFile(o.JoinFile); err != nil {
		p.add(fmt.Errorf("--join-file: %w", err))
		return
	}
	p.warnOfReaders("join-file", o.JoinFile)
	for e := range strings.SplitSeq(o.endpoints, ",") {
		if strings.HasPrefix(strings.TrimSpace(e), "http://") {
			p.bad("join-file", o.JoinFile, "want https:// in --etcd-endpoints: without TLS it has no use")
			break
		}
	}
	o.CAFile, o.CertFile, o.KeyFile, o.ServerName = o.JoinFile, o.JoinFile, o.JoinFile, pki.ServerName
}

// checkListen refuses an embedded etcd that would answer strangers, unless that is wanted: for a daemon, which starts it.
func (o *Etcd) checkListen(p *problems) {
	u, err := url.ParseRequestURI(o.ListenURL)
	if !o.Embedded || err != nil {
		return
	}
	switch {
	case u.Scheme == "https":
		if _, err := pki.Dir(o.PKIDir).Authority(); err != nil {
			p.add(fmt.Errorf("--pki-dir: %w", err))
		}
		for _, file := range pki.Dir(o.PKIDir).Files() {
			p.warnOfReaders("pki-dir", file)
		}
	case u.Scheme == "http" && !isLoopback(u.Hostname()) && !o.Insecure:
		p.add(fmt.Errorf("--etcd-listen-client-url: %q: %w", o.ListenURL, ErrExposed))
	}
}

// isLoopback reports whether only this host reaches what listens on a host. What is not an address is refused later.
func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err != nil || a.Unmap().IsLoopback()
}
