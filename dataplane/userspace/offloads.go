package userspace

import (
	"fmt"
	"strings"
)

// Offloads is a set of the offloads that the dataplane may use. Each is used only
// if the kernel has it, and none is needed: the set exists so that every path
// can be tested on one machine. The zero value is the plain tier, one
// packet per system call.
type Offloads uint8

// The offloads.
const (
	TUNVnet       Offloads = 1 << iota // vnet headers on the device: superpackets to the host, and batches
	TUNGSO                             // superpackets and partial checksums from the host; needs TUNVnet
	TUNMultiqueue                      // one queue, socket and pair of workers per processor; needs TUNVnet
	UDPSegment                         // many datagrams per send (UDP_SEGMENT, Linux 4.18)
	UDPGRO                             // many datagrams per receive (UDP_GRO, Linux 5.0)
	Coalesce                           // received packets are joined to superpackets; needs TUNVnet
	Tunnel                             // superpackets leave whole, inside of the tunnel (Linux 6.17); needs TUNGSO

	AllOffloads = TUNVnet | TUNGSO | TUNMultiqueue | UDPSegment | UDPGRO | Coalesce | Tunnel
)

// offloadNames returns the names in the order of the bits.
func offloadNames() [7]string {
	return [...]string{"tun-vnet", "tun-gso", "tun-multiqueue", "udp-segment", "udp-gro", "coalesce", "tunnel"}
}

// has reports whether all of b are in o.
func (o Offloads) has(b Offloads) bool { return o&b == b }

// OfFiles are those that what a process hands over depends on (dataplane/inherit).
func (o Offloads) OfFiles() uint8 { return uint8(o &^ Tunnel) }

// Names returns the names of the set.
func (o Offloads) Names() (names []string) {
	for i, name := range offloadNames() {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String returns the names of the set, comma-separated, or "none".
func (o Offloads) String() string {
	if o == 0 {
		return "none"
	}
	return strings.Join(o.Names(), ",")
}

// ParseOffloads reads a comma-separated list: "all", "none" or its synonym
// "plain", names to add, and names behind a minus sign to take away. A list that
// begins with a minus sign begins with all. The empty string is all.
func ParseOffloads(s string) (Offloads, error) {
	set := Offloads(0)
	if s == "" || s[0] == '-' {
		set = AllOffloads
	}
	for word := range strings.SplitSeq(s, ",") {
		name, minus := strings.CutPrefix(strings.TrimSpace(word), "-")
		bit, err := parseOffload(name)
		switch {
		case err != nil:
			return 0, err
		case minus:
			set &^= bit
		case name == "none" || name == "plain":
			set = 0
		default:
			set |= bit
		}
	}
	return set, nil
}

func parseOffload(name string) (Offloads, error) {
	switch name {
	case "", "none", "plain":
		return 0, nil
	case "all":
		return AllOffloads, nil
	}
	for i, n := range offloadNames() {
		if n == name {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("offload %q: want all, none, or some of %s", name, AllOffloads)
}
