package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// Config is everything that a Daemon is told: plain values, and functions for what would link a
// server or a client of one. Fields may be zero unless their comment says otherwise.
type Config struct {
	Log      *slog.Logger // must be set
	Hostname string       // name of this node, for messages
	Version  string       // of this program, for messages

	OpenStore    OpenStore    // must be set
	OpenNetworks OpenNetworks // nil: serve the one network that has no name
	StartEtcd    StartEtcd    // nil: run no etcd in this process
	StoreHosts   []string     // names or addresses at which stores are reached: no subnet may hold one
	FirstConfig  []byte       // network config in flannel's JSON, written if the store has none

	// Listen opens the listener of the health endpoint; nil: no endpoint. It is called once
	// nothing else can refuse the start.
	Listen func() (net.Listener, error)
	// Notify tells the service manager a state of sd_notify(3); nil: no service manager.
	Notify func(state string)
	// Fix says what to do about an error that is going to be logged; nil, or empty: nothing.
	Fix func(network string, err error) string

	Networks   []string // of those that OpenNetworks finds, serve only these; empty: all
	SubnetFile string   // of the one network; must be set unless OpenNetworks is
	SubnetDir  string   // directory of <network>.env if OpenNetworks is set

	Mode     Mode // must be set
	DF       bool // userspace dataplane: the underlay may not fragment
	Offloads userspace.Offloads
	// AnyPeerFrom: the userspace dataplane takes packets of any peer from addresses in these.
	AnyPeerFrom []netip.Prefix

	Underlay underlay.Options // the families are filled in from the network config

	WorkloadAddress bool          // give the device the first usable address of the subnet too
	RenewMargin     time.Duration // renew a lease this long before it ends; 0: an hour
	Rules           RuleConfig
}

// RuleConfig says what happens to packets besides being carried.
type RuleConfig struct {
	Masquerade bool          // translate what leaves the overlay network
	KeepPorts  bool          // masquerading keeps source ports if it can, instead of random ones
	Forward    bool          // accept packets of the overlay network in FORWARD
	Blackhole  bool          // drop what is sent to an address of the own subnet that no pod has
	Remove     bool          // remove the rules when the daemon stops
	Resync     time.Duration // between checks of what the kernel gives no notice of; 0: each part's own
}

// OpenStore opens the store of a network; "" is the one that has no name. It asks no server.
// The store is closed if it is an io.Closer.
type OpenStore func(ctx context.Context, network string, log *slog.Logger) (control.Store, error)

// OpenNetworks opens the list of the networks to serve. It asks no server.
type OpenNetworks func(ctx context.Context) (NetworkLister, error)

// NetworkLister finds the networks that there are.
type NetworkLister interface {
	// Networks sends their names, at first and after every change, until ctx ends; then it
	// closes the channel.
	Networks(ctx context.Context) <-chan []string
	io.Closer
}

// StartEtcd starts an etcd server inside this process.
type StartEtcd func(ctx context.Context) (Server, error)

// Server is a running server.
type Server interface {
	Err() <-chan error // sends once if the server dies
	Stop() error
}

// Mode says which dataplane carries the packets.
type Mode string

// The modes. Auto takes the kernel's dataplane if it can be opened, and else the userspace one.
const (
	Auto      Mode = "auto"
	Kernel    Mode = "kernel"
	Userspace Mode = "userspace"
)

// several reports whether the daemon serves networks that have names.
func (c *Config) several() bool { return c.OpenNetworks != nil }

// subnetFileOf returns the subnet file of a network; "" is the one that has no name.
func (c *Config) subnetFileOf(network string) string {
	if network == "" {
		return c.SubnetFile
	}
	return filepath.Join(c.SubnetDir, network+".env")
}

// concerns reports whether a network is one of those to serve.
func (c *Config) concerns(network string) bool {
	return len(c.Networks) == 0 || slices.Contains(c.Networks, network)
}

// attrs are the attributes of a log line about an error.
func (c *Config) attrs(network string, err error) []any {
	attrs := []any{"err", err}
	if c.Fix == nil {
		return attrs
	}
	if fix := c.Fix(network, err); fix != "" {
		attrs = append(attrs, "fix", fix)
	}
	return attrs
}

func (c *Config) notify(state string) {
	if c.Notify != nil {
		c.Notify(state)
	}
}
