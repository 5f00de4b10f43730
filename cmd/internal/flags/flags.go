// Package flags holds the flags of the daemon: one group per file, registered in the order of
// --help, filled in from the environment, checked, and turned into a node.Config. It knows no
// store: package stores makes their configs of the groups Etcd and Kube.
package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// Flags are the daemon's flags in their groups. Complete checks them; nothing reads them before.
type Flags struct {
	Dataplane dataplaneFlags
	Network   networkFlags
	Etcd      Etcd
	Kube      kubeFlags
	Underlay  Underlay
	Rules     ruleFlags
	Process   Process

	Warnings []Warning // for the log; made by Complete
}

// Register adds all flags to f.
func (o *Flags) Register(f *pflag.FlagSet) {
	f.SortFlags = false
	for _, g := range []struct {
		title    string
		register func(*pflag.FlagSet)
	}{
		{"Dataplane", o.Dataplane.register},
		{"Network and subnet", o.Network.register},
		{"etcd", o.Etcd.Register},
		{"Kubernetes", o.Kube.register},
		{"Underlay", o.Underlay.Register},
		{"Traffic rules and routes", o.Rules.register},
		{"Process", o.Process.register},
	} {
		RegisterGroup(f, g.title, g.register)
	}
}

// Parse reads the arguments of a daemon. Complete still has to be called with the flags that it returns.
func Parse(args []string) (*Flags, *pflag.FlagSet, error) {
	o, f := new(Flags), pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	err := f.Parse(Normalize(f, args))
	return o, f, Readable(err)
}

// Differences returns the names of the flags that have another value in b than in a.
func Differences(a, b *pflag.FlagSet) (names []string) {
	b.VisitAll(func(flag *pflag.Flag) {
		if was := a.Lookup(flag.Name); was != nil && was.Value.String() != flag.Value.String() {
			names = append(names, flag.Name)
		}
	})
	return names
}

// Complete fills in from the environment the flags that were not given, and checks all of them.
// Its errors name the flag, or the variable, and the value.
func (o *Flags) Complete(f *pflag.FlagSet, env func(string) (string, bool)) error {
	applyPassword(f, env)
	env, file, err := WithEnvFile(f, env)
	if err != nil {
		return err
	}
	o.Etcd.endpointsGiven = Given(f, env, "etcd-endpoints")
	o.Network.subnetFileGiven = Given(f, env, "subnet-file")
	var p problems
	if f.Changed("etcd-password") {
		p.warn("the etcd password is given on the command line, where everybody on this host could see it for a moment",
			"give it in a file, or in the variable OVERLAYD_ETCD_PASSWORD: see overlayd --help")
	}
	if file != nil {
		p.warnOfReaders(EnvFlag, strings.TrimPrefix(envFileOf(f, env), "-"))
	}
	warnOfUnknown(f, file, &p)
	if applyEnv(f, env, &p); len(p.errs) == 0 {
		o.Kube.fromEnv(env)
		o.check(&p)
	}
	o.Warnings = p.warnings
	return errors.Join(p.errs...)
}

// check checks each group, and then what concerns several.
func (o *Flags) check(p *problems) {
	o.Dataplane.check(p)
	o.Network.check(p, o.Kube.Enabled)
	if o.Kube.Enabled {
		o.Kube.check(p)
	} else {
		o.Etcd.check(p)
		o.Etcd.checkListen(p)
	}
	o.Underlay.check(p)
	o.Rules.check(p)
	o.Process.check(p)
	o.checkStores(p)
}

// checkStores refuses flags of one store beside the other.
func (o *Flags) checkStores(p *problems) {
	if !o.Kube.Enabled {
		return
	}
	for _, f := range []struct {
		flag string
		set  bool
		why  string
	}{
		{"etcd-embedded", o.Etcd.Embedded, "Kubernetes keeps the leases"},
		{"network", o.Network.network != "", "the network config is the file --net-config-path"},
		{"networks", len(o.Network.Names) > 0, "Kubernetes has one overlay network"},
		{"watch-networks", o.Network.Watch, "Kubernetes has one overlay network"},
	} {
		if f.set {
			p.add(fmt.Errorf("--%s cannot be used with --kube-subnet-mgr: %s", f.flag, f.why))
		}
	}
}

// Config returns what the flags tell a daemon. Its functions, but for the log, are the caller's.
func (o *Flags) Config() node.Config {
	level := new(slog.LevelVar)
	level.Set(o.Process.Level())
	return node.Config{
		Log:         o.Process.Logger(level),
		LogLevel:    level,
		FirstConfig: o.Network.firstConfig,
		Networks:    o.Network.Names,
		Replace:     o.Process.Replace,
		Admin:       node.AdminConfig{Group: o.Process.AdminGroup},
		SubnetFile:  o.Network.SubnetFile,
		SubnetDir:   o.Network.SubnetDir,
		Options: parts.Options{
			Mode:         fit.Mode(o.Dataplane.mode),
			Deaf:         o.Dataplane.events == eventsOff,
			DF:           o.Dataplane.df == dfSet,
			MinPathMTU:   o.Dataplane.minPathMTU,
			Offloads:     o.Dataplane.offloads,
			ExpectTunnel: o.Dataplane.offload == offloadTunnel,
			WantTunnel:   o.Dataplane.offload == offloadTunnel || o.Dataplane.offload == offloadAuto,
			SourceCheck:  dataplane.SourceCheck(o.Dataplane.sourceCheck),
			AnyPeerFrom:  o.Dataplane.anyPeerFrom,
			PlainSource:  o.Dataplane.plainSource == plainAllow,
			EgressMark:   o.Dataplane.mark,
			Rules:        o.Rules.config(),
		},
		PeerCIDRs:       o.Dataplane.peers,
		Underlay:        o.Underlay.Options(),
		ProbeInterval:   o.Process.probeInterval,
		ConfigHold:      o.Network.configHold,
		WorkloadAddress: o.Network.workloadAddress,
		RenewMargin:     time.Duration(o.Etcd.renewMarginMin) * time.Minute,
	}
}

// dataplaneFlags say who carries the packets, and how.
type dataplaneFlags struct {
	mode        string
	df          string
	minPathMTU  int
	sourceCheck string
	peerCIDRs   []string
	offload     string
	offloadList string
	events      string

	plainSource string
	egressMark  string

	offloads    userspace.Offloads // made by check
	mark        uint32             // likewise
	anyPeerFrom []netip.Prefix     // likewise
	peers       []netip.Prefix     // likewise
}

// The values of --debug-events.
const (
	eventsOn  = "on"
	eventsOff = "off"
)

// The values of --offload.
const (
	offloadAuto   = "auto"
	offloadTunnel = "tunnel"
	offloadSocket = "socket"
	offloadPlain  = "plain"
)

// The values of --df.
const (
	dfClear = "clear"
	dfSet   = "set"
)

// minPathMTU is the least --min-path-mtu: what every host of IPv4 takes (RFC 791 section 3.1).
const minPathMTU = 576

// sourceOuter is what older overlayds called strict.
const sourceOuter = "outer"

// The values of --plain-source.
const (
	plainDrop  = "drop"
	plainAllow = "allow"
)

func (o *dataplaneFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.mode, "dataplane", string(fit.Auto), "kernel: program the kernel's vxlan device; userspace: forward packets in this process; auto: kernel if it works, else userspace")
	f.StringVar(&o.df, "df", dfClear, "outer Don't Fragment bit; clear: the underlay may fragment tunnel packets, as with flannel; set: it may not, and hosts learn the MTU of each path (userspace dataplane only)")
	f.IntVar(&o.minPathMTU, "min-path-mtu", carrier.DefaultMinPathMTU, "smallest path MTU, in bytes, of a path to a peer that is believed when ICMP reports it")
	f.StringVar(&o.sourceCheck, "source-check", string(dataplane.SourceStrict), "which packets to accept; strict: from a peer's address, with a source in that peer's subnet, for a pod of this host; overlay: also with a source outside of the overlay; inner: also from any address in --peer-cidr, with a source in some peer's subnet, for peers behind a NAT; off: all")
	f.StringArrayVar(&o.peerCIDRs, "peer-cidr", nil, "network such as 10.0.0.0/16: use only peers with a public IP in these networks; --source-check=inner accepts packets from them; repeatable (default: any public IP)")
	f.StringVar(&o.plainSource, "plain-source", plainDrop, "packets that have the source of a pod, come by a link where it is not, and have no encapsulation; drop: drop them, unless a direct route leads to the pod; allow: let them in")
	f.StringVar(&o.egressMark, "egress-mark", fmt.Sprintf("%#x", guard.DefaultMark), "bit of the packet mark that lets packets go to the VXLAN port of a peer")
	f.StringVar(&o.offload, "offload", offloadAuto, "how the userspace dataplane hands superpackets to the kernel; auto: the fastest way that works; tunnel: whole, by a TAP device (Linux 6.17), over any link, with a warning if that does not work; socket: by UDP sockets only; plain: no superpackets, one packet for each system call")
	f.StringVar(&o.offloadList, "debug-offloads", "all", "offloads that the userspace dataplane may use: all, none, or a list such as -udp-gro,-coalesce")
	f.StringVar(&o.events, "debug-events", eventsOn, "on: repair when the kernel tells of a change; off: do without, and look every few seconds")
	for _, name := range []string{"debug-offloads", "debug-events"} {
		f.Lookup(name).Hidden = true
	}
}

func (o *dataplaneFlags) check(p *problems) {
	switch fit.Mode(o.mode) {
	case fit.Auto, fit.Kernel, fit.Userspace:
	default:
		p.bad("dataplane", o.mode, "want auto, kernel or userspace")
	}
	switch {
	case o.df != dfClear && o.df != dfSet:
		p.bad("df", o.df, "want clear or set")
	case o.df == dfSet && o.mode != string(fit.Userspace):
		p.bad("df", o.df, "only the userspace dataplane can do this: give --dataplane=userspace too")
	}
	switch text := strconv.Itoa(o.minPathMTU); {
	case o.minPathMTU < minPathMTU || o.minPathMTU > carrier.MaxPacket:
		p.bad("min-path-mtu", text, fmt.Sprintf("want %d to %d", minPathMTU, carrier.MaxPacket))
	case o.minPathMTU != carrier.DefaultMinPathMTU && o.mode == string(fit.Kernel):
		p.bad("min-path-mtu", text, "only the userspace dataplane learns what paths take: leave this out")
	}
	if o.events != eventsOn && o.events != eventsOff {
		p.bad("debug-events", o.events, "want on or off")
	}
	o.checkSources(p)
	var err error
	if o.offloads, err = userspace.ParseOffloads(o.offloadList); err != nil {
		p.bad("debug-offloads", o.offloadList, err.Error())
	}
	switch o.offload {
	case offloadAuto, offloadTunnel:
	case offloadSocket:
		o.offloads &^= userspace.Tunnel
	case offloadPlain:
		o.offloads = 0
	default:
		p.bad("offload", o.offload, "want auto, tunnel, socket or plain")
	}
	if o.offload != offloadAuto && o.mode == string(fit.Kernel) {
		p.bad("offload", o.offload, "only the userspace dataplane has these: leave this out")
	}
}

// checkSources parses the networks that packets of any peer may come from.
func (o *dataplaneFlags) checkSources(p *problems) {
	if o.sourceCheck == sourceOuter {
		o.sourceCheck = string(dataplane.SourceStrict)
	}
	inner := o.sourceCheck == string(dataplane.SourceInner)
	switch dataplane.SourceCheck(o.sourceCheck) {
	case dataplane.SourceStrict, dataplane.SourceOverlay, dataplane.SourceInner, dataplane.SourceOff:
	default:
		p.bad("source-check", o.sourceCheck, "want strict, overlay, inner or off")
	}
	switch {
	case inner && len(o.peerCIDRs) == 0:
		p.bad("source-check", o.sourceCheck, "say from which addresses packets of peers may come, by --peer-cidr")
	}
	if o.plainSource != plainDrop && o.plainSource != plainAllow {
		p.bad("plain-source", o.plainSource, "want drop or allow")
	}
	mark, err := strconv.ParseUint(o.egressMark, 0, 32)
	if err != nil || bits.OnesCount64(mark) != 1 {
		p.bad("egress-mark", o.egressMark, "want one bit of 32, such as 0x100000")
	}
	o.mark = uint32(mark)
	for _, text := range o.peerCIDRs {
		c, err := netip.ParsePrefix(text)
		if err != nil || c.Addr().Is4In6() || c != c.Masked() {
			p.bad("peer-cidr", text, "want a network such as 10.0.0.0/16, without bits beyond its length")
			continue
		}
		o.peers = append(o.peers, c)
		if inner {
			o.anyPeerFrom = append(o.anyPeerFrom, c)
		}
	}
}

// checkWritable refuses a file that could never be written.
func checkWritable(flag, path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--%s: %s is a directory", flag, path)
	}
	if info, err := os.Stat(filepath.Dir(path)); err == nil && !info.IsDir() {
		return fmt.Errorf("--%s: %s is not a directory", flag, filepath.Dir(path))
	}
	return nil
}
