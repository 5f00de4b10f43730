package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
)

// DefaultMark is the bit of the packet mark that lets datagrams of this host's overlay pass, unless another is given.
const DefaultMark = 0x100000

// Config configures the guard of one network.
type Config struct {
	Log *slog.Logger
	// VNI and Port tell the datagrams of this network. Several networks on one host have a guard each.
	VNI  uint32
	Port uint16
	// Check is what is asked of a datagram. With SourceOff there is no guard, and one of an earlier run is removed.
	Check dataplane.SourceCheck
	// AnyPeerFrom are networks from whose addresses any peer's packets may come, with SourceInner.
	AnyPeerFrom []netip.Prefix
	// AllowPlain lets packets with overlay sources come by the underlay and other links without encapsulation.
	AllowPlain bool
	// Mark has the bits of the packet mark with which datagrams may leave for VTEPs, one at least.
	Mark uint32
	// Underlay is the interface of the underlay, and IPv4 and IPv6 are the families that VTEPs have there.
	Underlay   string
	Link       int // index of Underlay; 0: not known
	IPv4, IPv6 bool
	// Local are the addresses to which peers send, of each family the usual one first. What comes to another address of this host is dropped, because
	// a peer's rules do not keep its pods and processes from sending there. Without addresses of a family every destination is allowed.
	Local []netip.Addr
	// GBP says that the VXLAN header of a peer may have a group policy.
	GBP bool
	// MinPathMTU is the least MTU of a path to a VTEP of IPv4 that the kernel may believe when ICMP reports it, in bytes.
	MinPathMTU int
	// Temporary are the names of devices that take another's place. Their packets have been judged.
	Temporary []string
	// Direct says that packets of peers may come without encapsulation, by direct routes.
	Direct bool
	// Alone says that this process has no other network on the port: then nothing else is for its sockets.
	Alone bool
	// Settle is how long after Open AllowPlain holds whatever it says: when the network config has changed, peers may
	// still send, or send already, as the other one has it.
	Settle time.Duration
	// Off tells whether the guard is switched off: then it has no rules. Whoever changes that calls Switched. nil: never.
	Off func() bool
	// Synced is called once, when the rules of this guard are in place or none are wanted: guards of earlier VNIs are not needed any more. nil: nobody is told.
	Synced func()
	// Resync is the time between two comparisons with the kernel without a notification; 0 means half a minute.
	Resync time.Duration
	// Deaf notices no changes of others but by Resync, which is a few seconds then: for tests.
	Deaf bool

	below       int      // index of the bridge on which Underlay is; 0: it is on none
	lackOrigins bool     // for tests: the kernel lacks what they need
	noKinds     bool     // the kernel cannot tell the kinds of devices (before 5.6)
	noIncoming  bool     // it does not tell in postrouting by which device a packet came (before 5.7)
	noOrigins   bool     // it has no secmark, or no hash for IPv6
	labels      bool     // a security module may read secmarks
	asIfIPVS    bool     // for tests: see tracksIPVS
	seed        uint32   // of the hash of origins
	extra       []string // names of Forwards
}

const defaultResync = 30 * time.Second

func (c *Config) families() (all []family) {
	if c.IPv4 {
		all = append(all, ipv4)
	}
	if c.IPv6 {
		all = append(all, ipv6)
	}
	return all
}

// devices are the names of the overlay devices.
func (c *Config) devices() []string {
	names := []string{dataplane.DeviceName(c.VNI)}
	if c.IPv6 && c.VNI <= dataplane.MaxDeviceVNIV6 {
		names = append(names, dataplane.DeviceNameV6(c.VNI))
	}
	return append(names, c.extra...)
}

// links are the indices of the overlay devices that there are.
func (c *Config) links() (all []int) {
	for _, name := range c.devices() {
		if l, err := netlink.LinkByName(name); err == nil {
			all = append(all, l.Attrs().Index)
		}
	}
	return all
}

func (c *Config) anyPeerFrom(f family) []netip.Prefix {
	if c.Check != dataplane.SourceInner {
		return nil
	}
	return ofFamily(c.AnyPeerFrom, f)
}

func (c *Config) check() error {
	switch {
	case c.Port == 0 || c.VNI >= 1<<24:
		return fmt.Errorf("VNI %d and port %d: want a VNI below 2^24 and a port", c.VNI, c.Port)
	case c.Mark == 0:
		return errors.New("mark 0: want a bit at least")
	case !c.IPv4 && !c.IPv6:
		return errors.New("no family of the underlay")
	case c.Underlay == "":
		return errors.New("no interface of the underlay")
	}
	return nil
}
