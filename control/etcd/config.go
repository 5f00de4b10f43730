package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control/etcdrpc"
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
	Endpoints []string // http://host:port, https://host:port, host:port or unix://path; at least one. Those of one cluster are used in turn
	Prefix    string   // of all keys; "": DefaultPrefix

	CertFile string // client certificate and its key, PEM: both or none
	KeyFile  string
	CAFile   string // who may have signed the server's certificate, PEM; "": the system's authorities. If it is CertFile, those in it
	Username string
	Password string
	// ReadPassword reads the password again, before each request for a token; nil: it stays Password.
	ReadPassword func() (string, error)

	ServerName string // that the server's certificate is for; "": the host of the endpoint

	LeaseTTL time.Duration // how long a lease holds unless renewed, whole seconds; 0: DefaultLeaseTTL
	NodeTTL  time.Duration // how long a dead node blocks its public IP, whole seconds; 0: DefaultNodeTTL
	Relist   time.Duration // how long a watch is trusted, within ±10 %; 0: DefaultRelist

	Quiet bool         // for a command: do not warn of a connection without encryption if no password goes over it; the daemon warns
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
	}
	return c, nil
}

// connection returns what concerns the way to etcd.
func (c Config) connection() etcdrpc.Config {
	return etcdrpc.Config{Endpoints: c.Endpoints, CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile, ServerName: c.ServerName,
		Username: c.Username, Password: c.Password, ReadPassword: c.ReadPassword, Quiet: c.Quiet, Log: c.Log}
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}
