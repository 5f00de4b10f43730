package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// options are the daemon's flags, one field each, in the order of --help.
// complete checks them; nothing reads them before.
type options struct {
	dataplane string

	etcdEndpoints  []string
	etcdPrefix     string
	etcdKeyFile    string
	etcdCertFile   string
	etcdCAFile     string
	etcdUsername   string
	etcdPassword   string
	etcdEmbedded   bool
	etcdDataDir    string
	etcdListenURL  string
	network        string
	netConfigPath  string
	leaseTTL       time.Duration
	renewMarginMin int

	iface         []string
	ifaceRegex    []string
	ifaceCanReach string
	publicIP      string
	df            string

	subnetFile string
	logFormat  string
	verbosity  int
	version    bool

	debugOffloadList string

	// Made by complete.
	debugOffloads userspace.Offloads
	canReach      netip.Addr
	public        netip.Addr
	netConfig     []byte // checked config to write where the store has none; nil: none
	defaultURL    bool   // --etcd-endpoints was not given
}

// defaultSubnetFile is where flannel's CNI plugin looks.
const defaultSubnetFile = "/run/flannel/subnet.env"

// The values of --df.
const (
	dfClear = "clear"
	dfSet   = "set"
)

// The dataplane modes.
const (
	modeAuto      = "auto"
	modeKernel    = "kernel"
	modeUserspace = "userspace"
)

func (o *options) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.dataplane, "dataplane", modeAuto, "kernel: program the kernel's vxlan device; userspace: forward packets in this process; auto: kernel where it works, else userspace")

	f.StringSliceVar(&o.etcdEndpoints, "etcd-endpoints", []string{"http://127.0.0.1:4001", "http://127.0.0.1:2379"}, "comma-separated etcd endpoints")
	f.StringVar(&o.etcdPrefix, "etcd-prefix", "/coreos.com/network", "prefix of all keys in etcd")
	f.StringVar(&o.etcdKeyFile, "etcd-keyfile", "", "private key of the client certificate, PEM")
	f.StringVar(&o.etcdCertFile, "etcd-certfile", "", "client certificate, PEM")
	f.StringVar(&o.etcdCAFile, "etcd-cafile", "", "certificate authority of the etcd servers, PEM")
	f.StringVar(&o.etcdUsername, "etcd-username", "", "etcd user")
	f.StringVar(&o.etcdPassword, "etcd-password", "", "password of the etcd user; prefer the environment: a flag shows in ps")
	f.BoolVar(&o.etcdEmbedded, "etcd-embedded", false, "run an etcd server inside this process, for a cluster that has none")
	f.StringVar(&o.etcdDataDir, "etcd-data-dir", "/var/lib/overlayd/etcd", "data directory of the embedded etcd")
	f.StringVar(&o.etcdListenURL, "etcd-listen-client-url", "http://127.0.0.1:2379", "where the embedded etcd listens; give this host's address so that others can join")
	f.StringVar(&o.network, "network", "", "overlay network such as 10.5.0.0/16: written as the network config if etcd has none")
	f.StringVar(&o.netConfigPath, "net-config-path", "", "file with a network config in JSON, written if etcd has none")
	f.DurationVar(&o.leaseTTL, "lease-ttl", 24*time.Hour, "how long the subnet stays ours after this node is gone; short for short-lived containers")
	f.IntVar(&o.renewMarginMin, "subnet-lease-renew-margin", 60, "renew the lease this many minutes before it ends; half-way where the lease is too short for that")

	f.StringArrayVar(&o.iface, "iface", nil, "name or address of the underlay interface; repeatable, the first match wins")
	f.StringArrayVar(&o.ifaceRegex, "iface-regex", nil, "regular expression on interface addresses, then names; repeatable, tried after --iface")
	f.StringVar(&o.ifaceCanReach, "iface-can-reach", "", "address: take the interface that the route to it uses; tried after --iface and --iface-regex")
	f.StringVar(&o.publicIP, "public-ip", "", "address that other nodes send to; may be one that this host does not own (NAT)")

	f.StringVar(&o.df, "df", dfClear, "clear: the underlay may fragment what is sent, as with flannel; set: it may not, and hosts are told what each path takes (userspace dataplane only)")
	f.StringVar(&o.subnetFile, "subnet-file", defaultSubnetFile, "file that tells a CNI plugin or Docker the subnet and MTU")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json, on standard error")
	f.IntVar(&o.verbosity, "v", 0, "log level: above 0 also what is of use only in a debugging session")
	f.StringVar(&o.debugOffloadList, "debug-offloads", "all", "offloads that the userspace dataplane may use: all, none, or a list such as -udp-gro,-coalesce")
	f.Lookup("debug-offloads").Hidden = true
	registerUnsupported(f)
}

// complete fills flags that were not given from the environment and checks all
// of them. Its errors name the flag, or the variable, and the value.
func (o *options) complete(f *pflag.FlagSet, env func(string) (string, bool)) error {
	o.defaultURL = !f.Changed("etcd-endpoints") && !fromEnv(env, "etcd-endpoints")
	if err := applyEnv(f, env); err != nil {
		return err
	}
	return errors.Join(refuseUnsupported(f), o.check())
}

// envNames are the variables of a flag, the one that wins first.
func envNames(flag string) [2]string {
	name := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	return [2]string{"OVERLAYD_" + name, "FLANNELD_" + name}
}

func fromEnv(env func(string) (string, bool), flag string) bool {
	for _, name := range envNames(flag) {
		if v, ok := env(name); ok && v != "" {
			return true
		}
	}
	return false
}

func applyEnv(f *pflag.FlagSet, env func(string) (string, bool)) (err error) {
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "help" || flag.Name == "version" { // OVERLAYD_VERSION is an image's tag
			return
		}
		for _, name := range envNames(flag.Name) {
			v, ok := env(name)
			if !ok || v == "" {
				continue
			}
			if serr := flag.Value.Set(v); serr != nil {
				err = errors.Join(err, fmt.Errorf("environment variable %s: invalid value %q: %w", name, shown(flag.Name, v), serr))
			}
			flag.Changed = true
			return
		}
	})
	return err
}

// shown is a value as it may appear in an error: a secret does not.
func shown(flag, value string) string {
	if flag == "etcd-password" {
		return "…"
	}
	return value
}

func (o *options) check() error {
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s: %q: %s", flag, fmt.Sprint(value), want))
	}
	switch o.dataplane {
	case modeAuto, modeKernel, modeUserspace:
	default:
		bad("dataplane", o.dataplane, "want auto, kernel or userspace")
	}
	switch {
	case o.df != dfClear && o.df != dfSet:
		bad("df", o.df, "want clear or set")
	case o.df == dfSet && o.dataplane != modeUserspace:
		bad("df", o.df, "only the userspace dataplane can: give --dataplane=userspace too")
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		bad("log-format", o.logFormat, "want text or json")
	}
	if o.renewMarginMin < 1 || o.renewMarginMin > 1439 {
		bad("subnet-lease-renew-margin", o.renewMarginMin, "out of the acceptable range of 1 to 1439 minutes")
	}
	if o.leaseTTL < minLeaseTTL || o.leaseTTL > maxLeaseTTL || o.leaseTTL%time.Second != 0 {
		bad("lease-ttl", o.leaseTTL, fmt.Sprintf("want whole seconds, from %s to %s", minLeaseTTL, maxLeaseTTL))
	}
	if o.subnetFile == "" {
		bad("subnet-file", "", "want a path")
	}
	for _, re := range o.ifaceRegex {
		if _, err := regexp.Compile(re); err != nil {
			bad("iface-regex", re, err.Error())
		}
	}
	var err error
	if o.debugOffloads, err = userspace.ParseOffloads(o.debugOffloadList); err != nil {
		bad("debug-offloads", o.debugOffloadList, err.Error())
	}
	if o.canReach, err = parseAddr(o.ifaceCanReach); err != nil {
		bad("iface-can-reach", o.ifaceCanReach, "want an IPv4 address")
	}
	if o.public, err = parseAddr(o.publicIP); err != nil {
		bad("public-ip", o.publicIP, "want an IPv4 address that other hosts can send to")
	}
	errs = append(errs, o.checkStore()...)
	errs = append(errs, o.loadNetConfig(), o.checkSubnetFile())
	return errors.Join(errs...)
}

// An etcd lease shorter than an election (1 s) and its renewal does not hold.
const (
	minLeaseTTL = 5 * time.Second
	maxLeaseTTL = 10 * 365 * 24 * time.Hour
)

func (o *options) checkStore() (errs []error) {
	if !strings.HasPrefix(o.etcdPrefix, "/") || strings.Trim(o.etcdPrefix, "/") == "" {
		errs = append(errs, fmt.Errorf("--etcd-prefix: %q: want an absolute path such as /coreos.com/network", o.etcdPrefix))
	}
	o.etcdPrefix = strings.TrimRight(o.etcdPrefix, "/")
	if o.etcdEmbedded {
		if u, err := url.ParseRequestURI(o.etcdListenURL); err != nil || u.User != nil || (u.Scheme != "http" && u.Scheme != "unix") {
			errs = append(errs, fmt.Errorf("--etcd-listen-client-url: %q: want http://<ip>:<port> or unix://<path>", o.etcdListenURL))
		}
		if o.etcdDataDir == "" {
			errs = append(errs, errors.New("--etcd-data-dir: empty: want a directory"))
		}
		if o.defaultURL {
			o.etcdEndpoints = []string{o.etcdListenURL}
		}
	}
	if len(o.etcdEndpoints) == 0 {
		errs = append(errs, errors.New("--etcd-endpoints: empty: want at least one URL such as http://127.0.0.1:2379"))
	}
	for i, e := range o.etcdEndpoints {
		o.etcdEndpoints[i] = strings.TrimSpace(e)
		if u, err := url.Parse(o.etcdEndpoints[i]); err != nil || u.User != nil || (u.Host == "" && u.Path == "") {
			errs = append(errs, fmt.Errorf("--etcd-endpoints: entry %d: want a URL such as http://127.0.0.1:2379, without user and password", i+1))
		}
	}
	if (o.etcdKeyFile == "") != (o.etcdCertFile == "") {
		errs = append(errs, errors.New("--etcd-keyfile and --etcd-certfile: give both or none"))
	}
	for _, file := range []struct{ flag, path string }{{"etcd-keyfile", o.etcdKeyFile}, {"etcd-certfile", o.etcdCertFile}, {"etcd-cafile", o.etcdCAFile}} {
		if file.path == "" {
			continue
		}
		if _, err := os.ReadFile(file.path); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", file.flag, err))
		}
	}
	return errs
}

func parseAddr(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err == nil && (!a.Is4() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
		err = errors.New("not a unicast IPv4 address")
	}
	return a, err
}

// loadNetConfig reads and checks what --network or --net-config-path would write.
func (o *options) loadNetConfig() error {
	switch {
	case o.network != "" && o.netConfigPath != "":
		return errors.New("--network and --net-config-path: give one of them")
	case o.network != "":
		p, err := netip.ParsePrefix(o.network)
		if err != nil || !p.Addr().Is4() {
			return fmt.Errorf("--network: %q: want an IPv4 network such as 10.5.0.0/16", o.network)
		}
		o.netConfig, err = json.Marshal(map[string]any{"Network": p.Masked().String(), "Backend": map[string]string{"Type": "vxlan"}})
		if err != nil {
			return err
		}
		if _, err := control.ParseNetwork(o.netConfig); err != nil {
			return fmt.Errorf("--network: %q: %w", o.network, err)
		}
	case o.netConfigPath != "":
		b, err := os.ReadFile(o.netConfigPath)
		if err != nil {
			return fmt.Errorf("--net-config-path: %w", err)
		}
		if _, err := control.ParseNetwork(b); err != nil {
			return fmt.Errorf("--net-config-path: %s: %w", o.netConfigPath, err)
		}
		o.netConfig = b
	}
	return nil
}

// checkSubnetFile refuses a path that cannot be written to whatever happens.
func (o *options) checkSubnetFile() error {
	if info, err := os.Stat(o.subnetFile); err == nil && info.IsDir() {
		return fmt.Errorf("--subnet-file: %s is a directory", o.subnetFile)
	}
	if info, err := os.Stat(filepath.Dir(o.subnetFile)); err == nil && !info.IsDir() {
		return fmt.Errorf("--subnet-file: %s is not a directory", filepath.Dir(o.subnetFile))
	}
	return nil
}

func (o *options) logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if o.verbosity > 0 {
		opts.Level = slog.LevelDebug
	}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
