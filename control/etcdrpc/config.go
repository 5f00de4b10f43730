package etcdrpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
)

// Config says which etcd to use and how to reach it. Secrets in it are never logged.
type Config struct {
	Endpoints []string // http://host:port, https://host:port, host:port or unix://path; at least one. Those of one cluster are used in turn

	CertFile string // client certificate and its key, PEM: both or none
	KeyFile  string
	CAFile   string // who may have signed the server's certificate, PEM; "": the system's authorities. If it is CertFile, those in it
	Username string
	Password string
	// ReadPassword reads the password again, before each request for a token; nil: it stays Password.
	ReadPassword func() (string, error)

	ServerName string // that the server's certificate is for; "": the host of the endpoint

	Quiet bool // for a command: do not warn of a connection without encryption if no password goes over it; the daemon warns
	Log   *slog.Logger
}

// check refuses what cannot be used.
func (c Config) check() error {
	if c.Password != "" && c.Username == "" {
		return errors.New("etcd password given without a user name")
	}
	return checkEndpoints(c.Endpoints)
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

// encrypts reports whether connections by this endpoint use TLS, as clientv3 chooses: without a scheme they do if
// there are certificate files.
func encrypts(endpoint string, files bool) bool {
	return strings.HasPrefix(endpoint, "https://") || files && !strings.HasPrefix(endpoint, "http://")
}

// exposed reports whether traffic to this endpoint crosses a network unencrypted.
func exposed(endpoint string, files bool) bool {
	u, err := parseEndpoint(endpoint)
	if err != nil || u.Scheme != "http" || encrypts(endpoint, files) || u.Hostname() == "localhost" {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err != nil || !a.IsLoopback()
}
