package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// settled is how long what was read holds: a flood of connections costs no more than one look in that time.
const settled = time.Second

// Server makes the TLS config of the server of what the directory holds. Its methods may be called from several
// goroutines.
type Server struct {
	dir       Dir
	log       *slog.Logger
	now       func() time.Time
	addresses func() ([]netip.Addr, error) // of this host

	mu      sync.Mutex
	looked  time.Time
	made    made
	notices pace.Notices // of what cannot be read
}

// made is a config, and what it was made of.
type made struct {
	config *tls.Config
	by     *x509.Certificate // the present authority
	next   *x509.Certificate // the next one, or nil
	addrs  []netip.Addr
	renew  time.Time // when the certificate is to be replaced
}

// OpenServer reads the directory, and fails if nothing can be made of it.
func OpenServer(d Dir, log *slog.Logger) (*Server, error) {
	s := &Server{dir: d, log: log, now: time.Now, addresses: hostAddresses}
	_, err := s.Config()
	return s, err
}

// Config returns the config for one handshake. It is the same one as long as nothing has changed: the authorities, the
// addresses of this host, and the age of the certificate. If the directory cannot be read, the last config stays.
func (s *Server) Config() (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().Round(0) // the wall clock alone: a time service may set it
	if s.made.config != nil && now.Sub(s.looked).Abs() < settled {
		return s.made.config, nil
	}
	s.looked = now
	m, err := s.make(now)
	switch {
	case err == nil:
		s.made = m
	case s.made.config == nil:
		return nil, err
	default:
		if due, _ := s.notices.Due(now, pace.Notice{Text: err.Error()}); len(due) > 0 {
			s.log.Warn("certificates of the embedded etcd cannot be made: going on with the previous ones", "err", err)
		}
	}
	return s.made.config, nil
}

// make returns the present certificate if it is still right, and else makes another. The caller holds mu.
func (s *Server) make(now time.Time) (made, error) {
	all, err := s.dir.load()
	if err != nil {
		return made{}, err
	}
	addrs, err := s.addresses()
	if err != nil {
		return made{}, fmt.Errorf("list the addresses of this host: %w", err)
	}
	m := made{by: all[0].Cert, addrs: addrs}
	if len(all) > 1 {
		m.next = all[1].Cert
	}
	why := s.made.differs(m, now)
	if why == "" {
		return s.made, nil
	}
	cert, key, err := all[0].issue(now, ServerName, x509.ExtKeyUsageServerAuth, addrs)
	if err != nil {
		return made{}, err
	}
	m.renew = now.Add(cert.NotAfter.Sub(now) / 2)
	m.config = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    x509.NewCertPool(),
		NextProtos:   []string{"h2", "http/1.1"},
		// A ticket would let in a client whose certificate is no longer taken.
		SessionTicketsDisabled: true,
	}
	for _, a := range all {
		m.config.ClientCAs.AddCert(a.Cert)
	}
	level := slog.LevelDebug
	if why == whyAuthorities {
		level = slog.LevelInfo
	}
	s.log.Log(context.Background(), level, "embedded etcd has another certificate: "+why, "addresses", addrs,
		"expires", cert.NotAfter.UTC().Format(time.DateOnly), "authorities", len(all))
	return m, nil
}

// whyAuthorities is what an operator has done.
const whyAuthorities = "the authorities have changed"

// differs says why a certificate that was made as m is no longer right; "" if it is.
func (m made) differs(now made, at time.Time) string {
	switch {
	case m.config == nil:
		return "it starts"
	case !same(m.by, now.by) || !same(m.next, now.next):
		return whyAuthorities
	case !slices.Equal(m.addrs, now.addrs):
		return "the addresses of this host have changed"
	case at.Before(m.config.Certificates[0].Leaf.NotBefore):
		return "the clock was set back"
	case !at.Before(m.renew):
		return "half of its time is over"
	}
	return ""
}

func same(a, b *x509.Certificate) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(b)
}

// maxAddresses bounds the addresses in a certificate: no client of overlayd looks at them, and a host may have
// thousands, such as those of Services.
const maxAddresses = 64

// hostAddresses returns the addresses of this host, sorted, less those that depend on an interface.
func hostAddresses() (addrs []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, p.Addr())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return addrs[:min(len(addrs), maxAddresses)], err
}
