package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
)

// Defaults of Config.
const (
	DefaultPrefix   = "/coreos.com/network"
	DefaultLeaseTTL = 24 * time.Hour
	DefaultNodeTTL  = 20 * time.Second
	DefaultRelist   = 10 * time.Minute
)

// Config says which etcd to use and how. Secrets in it are never logged.
type Config struct {
	Endpoints []string // http://host:port, https://host:port, host:port or unix://path; at least one. The first that answers is used
	Prefix    string   // of all keys; "": DefaultPrefix

	CertFile string // client certificate and its key, PEM: both or none
	KeyFile  string
	CAFile   string // who may have signed the server's certificate, PEM; "": the system's authorities
	Username string
	Password string

	LeaseTTL time.Duration // how long a lease holds unless renewed, whole seconds; 0: DefaultLeaseTTL
	NodeTTL  time.Duration // how long a dead node blocks its public IP, whole seconds; 0: DefaultNodeTTL
	Relist   time.Duration // how long a watch is trusted, within ±10 %; 0: DefaultRelist

	Quiet bool         // do not warn of a connection without encryption if no password goes over it: for a command, whose daemon does
	Log   *slog.Logger // nil: discarded
}

// withDefaults fills in what is zero and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	c.Prefix = strings.TrimRight(c.Prefix, "/")
	c.LeaseTTL = orDefault(c.LeaseTTL, DefaultLeaseTTL)
	c.NodeTTL = orDefault(c.NodeTTL, DefaultNodeTTL)
	c.Relist = orDefault(c.Relist, DefaultRelist)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Prefix == "":
		return c, errors.New("etcd prefix is empty: want a path such as " + DefaultPrefix)
	case c.LeaseTTL < time.Second || c.LeaseTTL%time.Second != 0:
		return c, fmt.Errorf("lease TTL %s: want whole seconds, at least 1s", c.LeaseTTL)
	case c.NodeTTL < time.Second || c.NodeTTL%time.Second != 0:
		return c, fmt.Errorf("node TTL %s: want whole seconds, at least 1s", c.NodeTTL)
	case c.Relist < time.Second:
		return c, fmt.Errorf("relist interval %s: want at least 1s", c.Relist)
	case c.Password != "" && c.Username == "":
		return c, errors.New("etcd password given without a user name")
	}
	return c, checkEndpoints(c.Endpoints)
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// checkEndpoints refuses what the client would not dial as meant: it takes the
// decision for or against TLS from the first endpoint alone.
func checkEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return errors.New("no etcd endpoint: want at least one, such as http://127.0.0.1:2379")
	}
	var secure []string
	for _, e := range endpoints {
		u, err := parseEndpoint(e)
		if err != nil {
			return err
		}
		if u.Scheme == "https" {
			secure = append(secure, e)
		}
	}
	if len(secure) > 0 && len(secure) < len(endpoints) {
		return fmt.Errorf("etcd endpoints %s: some are https and some are not", strings.Join(endpoints, ","))
	}
	return nil
}

func parseEndpoint(e string) (*url.URL, error) {
	text := e
	if !strings.Contains(e, "://") {
		text = "http://" + e
	}
	u, err := url.Parse(text)
	switch {
	case err != nil: // its text is left out: it may hold a password
		return nil, errors.New("etcd endpoint cannot be read as a URL: want http://host:port")
	case u.User != nil:
		return nil, fmt.Errorf("etcd endpoint %q: give user and password apart, not in the URL", u.Redacted())
	case u.Scheme == "unix" && u.Host+u.Path != "":
		return u, nil
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return u, nil
	}
	return nil, fmt.Errorf("etcd endpoint %q: want http://host:port, https://host:port or unix://path", e)
}

// exposed reports whether traffic to this endpoint crosses a network unencrypted.
func exposed(endpoint string) bool {
	u, err := parseEndpoint(endpoint)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err != nil || !a.IsLoopback()
}

// tlsConfig returns nil if cfg names no file: https endpoints are then checked
// against the system's authorities. The certificate is read again for every
// handshake, so that a renewed one is taken up without a restart.
func (c Config) tlsConfig() (*tls.Config, error) {
	if c.CAFile == "" && c.CertFile == "" && c.KeyFile == "" {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read etcd CA file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd CA file %q holds no PEM certificate", c.CAFile)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, fmt.Errorf("etcd certificate file %q and key file %q: want both or none", c.CertFile, c.KeyFile)
	}
	if c.CertFile == "" {
		return t, nil
	}
	load := func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load etcd certificate file %q and key file %q: %w", c.CertFile, c.KeyFile, err)
		}
		return &cert, nil
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return t, err
}
