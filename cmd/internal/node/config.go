package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Config is everything that a Daemon is told: plain values, and functions for what would link a
// server or a client of one. Fields may be zero unless their comment says otherwise.
type Config struct {
	Log      *slog.Logger   // must be set
	LogLevel *slog.LevelVar // of Log, which may change at any time; nil: it never does
	StoreLog *logs.Bound    // of the lines that whoever writes to the store can cause; nil: they have none in common
	Hostname string         // name of this node, for messages
	Version  string         // of this program, for messages

	OpenStore    OpenStore                   // must be set
	OpenNetworks OpenNetworks                // nil: serve the one network that has no name
	StartEtcd    StartEtcd                   // nil: run no etcd
	Certificates func() []status.Certificate // of the way to the store, as they are now; nil: none
	StoreHosts   []string                    // names or addresses at which stores are reached: no subnet may hold one
	FirstConfig  []byte                      // network config in flannel's JSON, written if the store has none

	// Settled is called once, when a network is ready for the first time: what only the set-up needs can be given up then, such as rights.
	// port is the UDP port of VXLAN. It may be nil.
	Settled func(port uint16)

	Endpoints []Endpoint
	Admin     AdminConfig
	Captures  *capture.Hub // of the packets of the userspace dataplane, closed by Run; nil: none can be captured
	// Notify tells the service manager a state of sd_notify(3), and may wait for ever; nil: no service manager.
	Notify   func(state string)
	Watchdog time.Duration // the service manager ends a daemon that it has not heard from for that long; 0: never
	// Fix says what to do about an error that is going to be logged or shown; nil, or empty: nothing.
	Fix func(network string, err error) string

	// Replace lets the daemon take the place of the one that runs with SubnetFile, without a loss of packets.
	Replace bool
	// Keeper is the service manager if that keeps open files for the next daemon, and Left what it has kept for this one.
	Keeper *handover.Keeper
	Left   []carrier.Export

	Networks   []string // of those that OpenNetworks finds, serve only these; empty: all
	SubnetFile string   // of the one network; must be set unless OpenNetworks is
	SubnetDir  string   // directory of <network>.env if OpenNetworks is set

	parts.Options // of all networks

	PeerCIDRs []netip.Prefix // in which peers publish their addresses; empty: they may publish any

	Underlay underlay.Options // the families are filled in from the network config

	ProbeInterval   time.Duration // between two questions to a peer whether it can be reached; 0: none are asked
	ConfigHold      time.Duration // how long a network config has to stand before it is applied, if this node's subnets do not fit it
	WorkloadAddress bool          // give the device the first usable address of the subnet too
	RenewMargin     time.Duration // renew a lease this long before it ends; 0: an hour
}

// Endpoint is a TCP port at which the daemon answers from before etcd and the networks start until it ends.
type Endpoint struct {
	Name string // for people
	At   string // what Listen listens at, by which another daemon knows the listener again
	// Listen is called after the subnet file is claimed, unless another daemon has handed over the listener. A *tcpport.TakenError
	// that is another user's fault is no end: the port is waited for.
	Listen  func() (net.Listener, error)
	Handler func(*Daemon) http.Handler
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

// StartEtcd starts an etcd server as a process of its own. It returns once that serves or cannot, or when ctx ends.
type StartEtcd func(ctx context.Context) Server

// Server is a server that is started again whenever it ends.
type Server interface {
	Status() status.Server // may be called at any time
	Stop() error
}

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

// fix says what to do about an error; empty if nobody knows.
func (c *Config) fix(network string, err error) string {
	if c.Fix == nil || err == nil {
		return ""
	}
	return c.Fix(network, err)
}

// attrs are the attributes of a log line about an error.
func (c *Config) attrs(network string, err error) []any {
	attrs := []any{"err", err}
	if fix := c.fix(network, err); fix != "" {
		attrs = append(attrs, "fix", fix)
	}
	return attrs
}
