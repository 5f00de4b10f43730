package parts

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// Options say how packets are carried, whatever the network config is. Fields may be zero unless their comment says otherwise.
type Options struct {
	Mode     fit.Mode // must be set
	Deaf     bool     // repair what others change by looking every few seconds, without the kernel's notices: for tests
	DF       bool     // userspace dataplane: the underlay may not fragment
	Offloads userspace.Offloads
	// ExpectTunnel: it is a warning if the userspace dataplane cannot hand superpackets to the kernel inside of the tunnel.
	ExpectTunnel bool
	// WantTunnel: it was asked for, so a line says so if Offloads leaves it out.
	WantTunnel bool
	// MinPathMTU: the userspace dataplane believes no path MTU below this, in bytes; 0: the default.
	MinPathMTU  int
	SourceCheck dataplane.SourceCheck // empty: strict
	// AnyPeerFrom: with SourceInner packets of any peer may come from addresses in these.
	AnyPeerFrom []netip.Prefix
	PlainSource bool   // packets that are not encapsulated may come by the underlay with the source of a pod
	EgressMark  uint32 // bits of the packet mark that let packets go to the VXLAN port of a peer; 0: guard.DefaultMark
	Rules       RuleConfig
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

// Config is what the parts of one overlay are opened for. Fields must be set unless their comment says otherwise.
type Config struct {
	Options
	Log       *slog.Logger
	LogAttrs  func(error) []any // attributes of a log line about an error
	Network   control.Network
	Underlay  underlay.Interface
	Ends      []dataplane.Underlay       // of Underlay that the userspace dataplane uses; the kernel's uses those of the network's families
	Settle    time.Duration              // for how long other hosts may still have the network config before this one; 0: they have this one
	Captures  *capture.Hub               // of the packets of the userspace dataplane; nil: none can be captured
	GuardOff  func() bool                // the guard is switched off
	Guarded   func()                     // called when the guard has its rules, or there will be none; nil: nobody wants to know
	Kept      func() *overlay.Forwarding // returns the dataplane of the overlay before, which goes on; nil if none does
	Inherited *handover.Inheritance      // what a userspace dataplane can go on with, if none was kept
	Others    *Others                    // nil: the daemon serves one network
}

// Others is what a network shares with the others of its daemon.
type Others struct {
	Log       *slog.Logger // of the daemon
	Ports     *sharedport.Pool
	Claimed   *sharedport.Claimed
	Unclaimed func() bool // reports whether one of them has not claimed its device yet
}
