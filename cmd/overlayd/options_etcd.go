package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/control/etcd"
)

// etcdOptions say which etcd keeps the leases, or that this process is one.
type etcdOptions struct {
	etcdEndpoints    []string
	etcdPrefix       string
	etcdKeyFile      string
	etcdCertFile     string
	etcdCAFile       string
	etcdUsername     string
	etcdPassword     string
	etcdPasswordFile string
	etcdEmbedded     bool
	etcdDataDir      string
	etcdListenURL    string
	leaseTTL         time.Duration
	renewMarginMin   int

	endpointsGiven bool // made by complete
	passwordShows  bool // made by complete: it is on the command line
}

func (o *etcdOptions) register(f *pflag.FlagSet) {
	f.StringSliceVar(&o.etcdEndpoints, "etcd-endpoints", []string{"http://127.0.0.1:4001", "http://127.0.0.1:2379"}, "comma-separated etcd endpoints: http://, https:// or unix://")
	f.StringVar(&o.etcdPrefix, "etcd-prefix", "/coreos.com/network", "prefix of all keys in etcd")
	f.StringVar(&o.etcdCAFile, "etcd-cafile", "", "certificate authority of the etcd servers, PEM; enough for https by itself")
	f.StringVar(&o.etcdCertFile, "etcd-certfile", "", "client certificate, PEM")
	f.StringVar(&o.etcdKeyFile, "etcd-keyfile", "", "private key of the client certificate, PEM")
	f.StringVar(&o.etcdUsername, "etcd-username", "", "etcd user")
	f.StringVar(&o.etcdPasswordFile, "etcd-password-file", "", "file whose first line is the password of the etcd user")
	f.StringVar(&o.etcdPassword, "etcd-password", "", "the password itself; in the environment and not as a flag, which everybody sees in ps")
	f.BoolVar(&o.etcdEmbedded, "etcd-embedded", false, "run an etcd server inside this process, for a cluster that has none")
	f.StringVar(&o.etcdDataDir, "etcd-data-dir", "/var/lib/overlayd/etcd", "data directory of the embedded etcd")
	f.StringVar(&o.etcdListenURL, "etcd-listen-client-url", "http://127.0.0.1:2379", "where the embedded etcd listens; give this host's address so that others can join")
	f.DurationVar(&o.leaseTTL, "lease-ttl", 24*time.Hour, "how long the subnet stays ours after this node is gone; short for short-lived containers")
	f.IntVar(&o.renewMarginMin, "subnet-lease-renew-margin", 60, "renew the lease this many minutes before it ends; half-way where the lease is too short for that")
}

// An etcd lease shorter than an election (1 s) and its renewal does not hold.
const (
	minLeaseTTL = 5 * time.Second
	maxLeaseTTL = 10 * 365 * 24 * time.Hour
)

func (o *etcdOptions) check(p *problems) {
	if strings.Trim(o.etcdPrefix, "/.") == "" {
		p.bad("etcd-prefix", o.etcdPrefix, "want a path such as /coreos.com/network")
	}
	o.etcdPrefix = path.Clean(o.etcdPrefix) // as flanneld does; one without the first slash is another one
	if o.renewMarginMin < 1 || o.renewMarginMin > 1439 {
		p.bad("subnet-lease-renew-margin", o.renewMarginMin, "out of the acceptable range of 1 to 1439 minutes")
	}
	if o.leaseTTL < minLeaseTTL || o.leaseTTL > maxLeaseTTL || o.leaseTTL%time.Second != 0 {
		p.bad("lease-ttl", o.leaseTTL, fmt.Sprintf("want whole seconds, from %s to %s", minLeaseTTL, maxLeaseTTL))
	}
	o.checkEmbedded(p)
	o.checkEndpoints(p)
	o.checkFiles(p)
	p.add(o.readPassword())
}

func (o *etcdOptions) checkEmbedded(p *problems) {
	if !o.etcdEmbedded {
		return
	}
	if u, err := url.ParseRequestURI(o.etcdListenURL); err != nil || u.User != nil || (u.Scheme != "http" && u.Scheme != "unix") {
		p.bad("etcd-listen-client-url", o.etcdListenURL, "want http://<ip>:<port> or unix://<path>")
	}
	if o.etcdDataDir == "" {
		p.bad("etcd-data-dir", "", "want a directory")
	}
	if !o.endpointsGiven {
		o.etcdEndpoints = []string{o.etcdListenURL}
	}
}

func (o *etcdOptions) checkEndpoints(p *problems) {
	if len(o.etcdEndpoints) == 0 {
		p.bad("etcd-endpoints", "", "want at least one URL such as http://127.0.0.1:2379")
	}
	for i, e := range o.etcdEndpoints {
		o.etcdEndpoints[i] = strings.TrimSpace(e)
		// The value is left out: it may hold a password.
		if u, err := url.Parse(o.etcdEndpoints[i]); err != nil || u.User != nil || (u.Host == "" && u.Path == "") {
			p.add(fmt.Errorf("--etcd-endpoints: entry %d: want a URL such as http://127.0.0.1:2379, without user and password", i+1))
		}
	}
}

func (o *etcdOptions) checkFiles(p *problems) {
	if (o.etcdKeyFile == "") != (o.etcdCertFile == "") {
		p.add(errors.New("--etcd-keyfile and --etcd-certfile: give both or none"))
	}
	for _, file := range []struct{ flag, path string }{{"etcd-keyfile", o.etcdKeyFile}, {"etcd-certfile", o.etcdCertFile}, {"etcd-cafile", o.etcdCAFile}} {
		if file.path == "" {
			continue
		}
		if _, err := os.ReadFile(file.path); err != nil {
			p.add(fmt.Errorf("--%s: %w", file.flag, err))
		}
	}
}

// readPassword takes the password from --etcd-password-file.
func (o *etcdOptions) readPassword() error {
	if o.etcdPasswordFile == "" {
		return nil
	}
	if o.etcdPassword != "" {
		return errors.New("--etcd-password and --etcd-password-file: give one of them")
	}
	b, err := os.ReadFile(o.etcdPasswordFile)
	if err != nil {
		return fmt.Errorf("--etcd-password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if o.etcdPassword = strings.TrimSuffix(line, "\r"); o.etcdPassword == "" {
		return fmt.Errorf("--etcd-password-file: %s: its first line is empty: want the password", o.etcdPasswordFile)
	}
	return nil
}

// etcdConfig is how the store of a network is opened: "" is the only one, whose keys
// are right below the prefix.
func (o *etcdOptions) etcdConfig(network string, log *slog.Logger) etcd.Config {
	return etcd.Config{
		Endpoints: o.etcdEndpoints,
		Prefix:    o.prefixOf(network),
		CertFile:  o.etcdCertFile,
		KeyFile:   o.etcdKeyFile,
		CAFile:    o.etcdCAFile,
		Username:  o.etcdUsername,
		Password:  o.etcdPassword,
		LeaseTTL:  o.leaseTTL,
		Log:       log,
	}
}

func (o *etcdOptions) prefixOf(network string) string {
	if network == "" {
		return o.etcdPrefix
	}
	return o.etcdPrefix + "/" + network
}
