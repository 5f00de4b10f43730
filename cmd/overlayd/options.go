package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/dataplane/userspace"
)

// options are the daemon's flags, one field each, in groups that have a file each
// and are in the order of --help. complete checks them; nothing reads them before.
type options struct {
	dataplaneOptions
	networkOptions
	etcdOptions
	kubeOptions
	underlayOptions
	ruleOptions
	processOptions
}

func (o *options) register(f *pflag.FlagSet) {
	f.SortFlags = false
	for _, g := range []struct {
		title    string
		register func(*pflag.FlagSet)
	}{
		{"Dataplane", o.dataplaneOptions.register},
		{"Network and subnet", o.networkOptions.register},
		{"etcd", o.etcdOptions.register},
		{"Kubernetes", o.kubeOptions.register},
		{"Underlay", o.underlayOptions.register},
		{"Traffic rules and routes", o.ruleOptions.register},
		{"Process", o.processOptions.register},
	} {
		registerGroup(f, g.title, g.register)
	}
}

// complete fills flags that were not given from the environment and checks all
// of them. Its errors name the flag, or the variable, and the value.
func (o *options) complete(f *pflag.FlagSet, env func(string) (string, bool)) error {
	given := func(flag string) bool { return f.Changed(flag) || fromEnv(env, flag) }
	o.endpointsGiven = given("etcd-endpoints")
	o.passwordShows = f.Changed("etcd-password")
	o.subnetFileGiven = given("subnet-file")
	if err := applyEnv(f, env); err != nil {
		return err
	}
	o.kubeOptions.fromEnv(env)
	return o.check()
}

// check checks each group, and then what concerns several.
func (o *options) check() error {
	var p problems
	o.dataplaneOptions.check(&p)
	o.networkOptions.check(&p, o.kube)
	if o.kube {
		o.kubeOptions.check(&p)
	} else {
		o.etcdOptions.check(&p)
	}
	o.underlayOptions.check(&p)
	o.ruleOptions.check(&p)
	o.processOptions.check(&p)
	o.checkStores(&p)
	return errors.Join(p...)
}

// checkStores refuses flags of one store beside the other.
func (o *options) checkStores(p *problems) {
	if !o.kube {
		return
	}
	for _, f := range []struct {
		flag string
		set  bool
		why  string
	}{
		{"etcd-embedded", o.etcdEmbedded, "Kubernetes keeps the leases"},
		{"network", o.network != "", "the network config is the file --net-config-path"},
		{"networks", len(o.networks) > 0, "Kubernetes has one overlay network"},
		{"watch-networks", o.watchNetworks, "Kubernetes has one overlay network"},
	} {
		if f.set {
			*p = append(*p, fmt.Errorf("--%s does not go with --kube-subnet-mgr: %s", f.flag, f.why))
		}
	}
}

// problems collects what is wrong with flags.
type problems []error

// bad says what is wrong with the value of a flag.
func (p *problems) bad(flag string, value any, want string) {
	*p = append(*p, fmt.Errorf("--%s: %q: %s", flag, fmt.Sprint(value), want))
}

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

// dataplaneOptions say who carries the packets, and how.
type dataplaneOptions struct {
	dataplane        string
	df               string
	debugOffloadList string

	debugOffloads userspace.Offloads // made by check
}

// The dataplane modes.
const (
	modeAuto      = "auto"
	modeKernel    = "kernel"
	modeUserspace = "userspace"
)

// The values of --df.
const (
	dfClear = "clear"
	dfSet   = "set"
)

func (o *dataplaneOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.dataplane, "dataplane", modeAuto, "kernel: program the kernel's vxlan device; userspace: forward packets in this process; auto: kernel where it works, else userspace")
	f.StringVar(&o.df, "df", dfClear, "clear: the underlay may fragment what is sent, as with flannel; set: it may not, and hosts are told what each path takes (userspace dataplane only)")
	f.StringVar(&o.debugOffloadList, "debug-offloads", "all", "offloads that the userspace dataplane may use: all, none, or a list such as -udp-gro,-coalesce")
	f.Lookup("debug-offloads").Hidden = true
}

func (o *dataplaneOptions) check(p *problems) {
	switch o.dataplane {
	case modeAuto, modeKernel, modeUserspace:
	default:
		p.bad("dataplane", o.dataplane, "want auto, kernel or userspace")
	}
	switch {
	case o.df != dfClear && o.df != dfSet:
		p.bad("df", o.df, "want clear or set")
	case o.df == dfSet && o.dataplane != modeUserspace:
		p.bad("df", o.df, "only the userspace dataplane can: give --dataplane=userspace too")
	}
	var err error
	if o.debugOffloads, err = userspace.ParseOffloads(o.debugOffloadList); err != nil {
		p.bad("debug-offloads", o.debugOffloadList, err.Error())
	}
}

// checkWritable refuses a file that cannot be written to whatever happens.
func checkWritable(flag, path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--%s: %s is a directory", flag, path)
	}
	if info, err := os.Stat(filepath.Dir(path)); err == nil && !info.IsDir() {
		return fmt.Errorf("--%s: %s is not a directory", flag, filepath.Dir(path))
	}
	return nil
}
