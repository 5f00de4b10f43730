package flags

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Etcd says which etcd keeps the leases, or that this daemon runs one. Its exported fields are valid
// once the flags are complete.
type Etcd struct {
	Endpoints []string // each with its scheme
	Prefix    string   // clean
	KeyFile   string
	CertFile  string
	CAFile    string
	JoinFile  string // KeyFile, CertFile and CAFile in one; they are it then
	Username  string
	Password  string // also if it came from a file, which PasswordReader reads again
	Embedded  bool
	Rebuild   bool
	DataDir   string
	ListenURL string
	Insecure  bool   // ListenURL may be http for other hosts
	PKIDir    string // of the authority, if ListenURL is https
	LeaseTTL  time.Duration

	ServerName string // that the server's certificate has to be for; "": the host of the endpoint; no flag

	Quiet bool   // for a command, which does not repeat what the daemon has warned of; no flag
	Dir   string // that relative paths are of, if these are the flags of another process; no flag

	endpoints      string
	password       string
	passwordFile   string
	renewMarginMin int
	endpointsGiven bool // made by complete
}

// Register adds the flags of etcd to f.
func (o *Etcd) Register(f *pflag.FlagSet) {
	f.StringVar(&o.endpoints, "etcd-endpoints", "http://127.0.0.1:4001,http://127.0.0.1:2379", "comma-separated etcd endpoints: http://, https:// or unix://")
	f.StringVar(&o.Prefix, "etcd-prefix", "/coreos.com/network", "prefix of all keys in etcd")
	f.StringVar(&o.CAFile, "etcd-cafile", "", "certificate authority of the etcd servers, PEM; enough for https by itself")
	f.StringVar(&o.CertFile, "etcd-certfile", "", "client certificate, PEM")
	f.StringVar(&o.KeyFile, "etcd-keyfile", "", "private key of the client certificate, PEM")
	f.StringVar(&o.JoinFile, "join-file", "", "file from overlayd pki join-file, to join an embedded etcd; replaces --etcd-cafile, --etcd-certfile and --etcd-keyfile")
	f.StringVar(&o.Username, "etcd-username", "", "etcd user")
	f.StringVar(&o.passwordFile, "etcd-password-file", "", "file whose first line is the password of the etcd user; read again whenever the daemon authenticates")
	f.StringVar(&o.password, "etcd-password", "", "password of the etcd user; a file or the environment is safer: for a moment everybody on this host can see a flag in ps")
	f.BoolVar(&o.Embedded, "etcd-embedded", false, "run an etcd server beside this daemon, for a cluster without one")
	f.BoolVar(&o.Rebuild, "etcd-embedded-rebuild", false, "if the data of the embedded etcd are damaged, move them aside and start empty; every node then writes its lease again")
	f.StringVar(&o.DataDir, "etcd-data-dir", "/var/lib/overlayd/etcd", "data directory of the embedded etcd")
	f.StringVar(&o.ListenURL, "etcd-listen-client-url", "http://127.0.0.1:2379", "URL on which the embedded etcd listens; to let other hosts join, run overlayd pki init, then give https:// and this host's address here")
	f.StringVar(&o.PKIDir, "pki-dir", string(pki.DefaultDir), "directory of overlayd pki, for an embedded etcd that listens on https")
	f.BoolVar(&o.Insecure, "etcd-embedded-insecure", false, "let the embedded etcd listen on http:// for other hosts: whoever reaches it can change leases")
	f.DurationVar(&o.LeaseTTL, "lease-ttl", 24*time.Hour, "how long this node keeps its subnet after it is gone; short for short-lived containers")
	f.IntVar(&o.renewMarginMin, "subnet-lease-renew-margin", 60, "renew the lease this many minutes before it ends; a lease too short for that is renewed half-way")
}

// A lease shorter than an election of etcd (1 s) and its renewal would expire meanwhile.
const (
	minLeaseTTL = 5 * time.Second
	maxLeaseTTL = 10 * 365 * 24 * time.Hour
)

// check checks the flags and makes Prefix, Endpoints and Password what they are to be.
func (o *Etcd) check(p *problems) {
	if strings.Trim(o.Prefix, "/.") == "" {
		p.bad("etcd-prefix", o.Prefix, "want a path such as /coreos.com/network")
	}
	o.Prefix = path.Clean(o.Prefix) // as flanneld does; a prefix without the leading slash is another prefix
	if o.renewMarginMin < 1 || o.renewMarginMin > 1439 {
		p.bad("subnet-lease-renew-margin", o.renewMarginMin, "out of the acceptable range of 1 to 1439 minutes")
	}
	if o.LeaseTTL < minLeaseTTL || o.LeaseTTL > maxLeaseTTL || o.LeaseTTL%time.Second != 0 {
		p.bad("lease-ttl", o.LeaseTTL, fmt.Sprintf("want whole seconds, from %s to %s", minLeaseTTL, maxLeaseTTL))
	}
	p.add(o.readPassword())
	p.warnOfReaders("etcd-password-file", o.passwordFile)
	p.warnOfReaders("etcd-keyfile", o.KeyFile)
	o.checkEmbedded(p)
	o.checkJoinFile(p)
	o.checkEndpoints(p)
	o.checkFiles(p)
}

// checkEmbedded checks the flags of the embedded etcd, which is the store unless endpoints were given.
func (o *Etcd) checkEmbedded(p *problems) {
	if !o.Embedded {
		if o.Rebuild {
			p.warn("--etcd-embedded-rebuild has no effect", "--etcd-embedded too")
		}
		if o.Insecure {
			p.warn("--etcd-embedded-insecure has no effect", "--etcd-embedded too")
		}
		return
	}
	if n := strings.Count(o.endpoints, ",") + 1; o.Rebuild && o.endpointsGiven && n > 1 {
		p.bad("etcd-embedded-rebuild", true, fmt.Sprintf("--etcd-endpoints names %d servers, and an empty one beside them would be another store: "+
			"take a damaged member out of its cluster (etcdctl member remove) and add it again", n))
	}
	u, err := url.ParseRequestURI(o.ListenURL)
	if err != nil || u.User != nil || !slices.Contains([]string{"http", "https", "unix"}, u.Scheme) {
		p.bad("etcd-listen-client-url", o.ListenURL, "want https://<ip>:<port>, http://<ip>:<port> or unix://<path>")
	}
	if o.DataDir == "" {
		p.bad("etcd-data-dir", "", "want a directory")
	}
	switch {
	case o.endpointsGiven:
	case strings.HasPrefix(o.ListenURL, "unix://"):
		o.endpoints = o.ListenURL
	default: // whoever has the port instead is not the store
		o.endpoints = o.ownSocket(p)
	}
}

// readPassword makes Password that of --etcd-password or --etcd-password-file.
func (o *Etcd) readPassword() (err error) {
	if o.password != "" && o.passwordFile != "" {
		return errors.New("--etcd-password and --etcd-password-file: give one of them")
	}
	o.Password = o.password
	if read := o.PasswordReader(); read != nil {
		o.Password, err = read()
	}
	return err
}

// PasswordFile returns the file with the password, or "" if no file was given.
func (o *Etcd) PasswordFile() string { return o.passwordFile }

// PasswordReader returns a function that reads --etcd-password-file, or nil if that was not given.
func (o *Etcd) PasswordReader() func() (string, error) {
	if o.passwordFile == "" {
		return nil
	}
	return func() (string, error) {
		b, err := hostfile.Read(o.passwordFile)
		if err != nil {
			return "", fmt.Errorf("--etcd-password-file: %w", err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		if line = strings.TrimSuffix(line, "\r"); line == "" {
			return "", fmt.Errorf("--etcd-password-file: %s: its first line is empty: want the password", o.passwordFile)
		}
		return line, nil
	}
}

// PrefixOf returns the prefix of a network's keys; "" is the one network that has no name.
func (o *Etcd) PrefixOf(network string) string {
	if network == "" {
		return o.Prefix
	}
	return o.Prefix + "/" + network
}

// Complete fills in from the environment the flags that were not given, and checks them: for a
// command that has no other flags.
func (o *Etcd) Complete(f *pflag.FlagSet, env func(string) (string, bool)) error {
	o.endpointsGiven = Given(f, env, "etcd-endpoints")
	applyPassword(f, env)
	var p problems
	if applyEnv(f, env, &p); len(p.errs) == 0 {
		if o.Dir != "" {
			MakeAbsolute(f, o.Dir)
		}
		o.check(&p)
	}
	return errors.Join(p.errs...)
}
