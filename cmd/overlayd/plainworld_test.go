package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
)

// world is a plain model of a cluster: what runs on which host, and so which objects there are. It knows
// what README, design and flannel's facts say, and nothing of the code that it judges: it computes names,
// MACs and rules by itself.
type world struct {
	filter             packetFilter
	dual, direct, masq bool
	networks           []plainNetwork
	hosts              []*plainHost
}

// plainNetwork is one overlay network. Its name is empty if the cluster has one only.
type plainNetwork struct {
	name string
	vni  int
	is   []string // prefixes, IPv4 first
}

// plainHost is one host. slot is the last byte of its underlay addresses.
type plainHost struct {
	name     string
	slot     int
	daemon   string // modeFlanneld, modeKernel, modeUserspace, or "" if none runs
	claims   bool   // of an overlayd that runs or was killed
	ghost    bool   // an overlayd was killed: for seconds its record is left
	tables   []bool // of flanneld in nft, by family
	overlays []*plainOverlay
}

// plainOverlay is one network on one host.
type plainOverlay struct {
	subnets []string // IPv4 first; given, since they are drawn at random
	macs    []string // of the lease and the device, IPv4 first; "" until a flanneld's new one is learnt
	lease   int      // the slot in the lease; 0: there is no lease
	former  []int    // slots that this host's overlayd has published, as its node file knows them: the last one last
	device  string   // vxlan, tun, or "" for none
	alias   bool     // the device has overlayd's
	local   int      // the slot that the device sends from
	mtu     int      // of the IPv4 device
	by      string   // who has programmed the device last: modeFlanneld, or modeKernel for an overlayd
	seen    map[int]sight
	fdb     []map[string]int // by family: MAC → slot
	rules   bool             // of by
	env     string           // whose the subnet file is, as by
	node    bool             // there is a node file
	guard   bool             // an overlayd has been here since the last cleanup: its guard stays, whoever comes
}

// sight is a host's lease as another one knows it.
type sight struct {
	slot int
	macs []string
}

// families are 4, and 6 in a dual-stack cluster.
func (w *world) families() int {
	if w.dual {
		return 2
	}
	return 1
}

// address is a host's address on the underlay, of the first family or the second.
func address(family, slot int) string {
	if family == 0 {
		return fmt.Sprintf("192.0.2.%d", slot)
	}
	a := netip.MustParseAddr("2001:db8::").As16()
	a[15] = byte(slot)
	return netip.AddrFrom16(a).String()
}

// plainMAC derives the n-th MAC of a VTEP: the first six bytes of a SHA-256 over a text, the address in 16
// bytes, the VNI in 4, and n if it is not 0; made local and unicast.
func plainMAC(address string, vni, n int) string {
	text := append([]byte("overlayd vtep "), net.ParseIP(address).To16()...)
	text = append(text, byte(vni>>24), byte(vni>>16), byte(vni>>8), byte(vni))
	if n > 0 {
		text = append(text, byte(n))
	}
	sum := sha256.Sum256(text)
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// isDerived reports whether a MAC is one of the eight that a VTEP can derive.
func isDerived(mac, address string, vni int) bool {
	for n := range 8 {
		if mac == plainMAC(address, vni, n) {
			return true
		}
	}
	return false
}

// starts is that a daemon starts on host i, on which none runs.
func (w *world) starts(i int, daemon string) {
	h := w.hosts[i]
	h.daemon = daemon
	for f := range h.tables {
		switch { // a flanneld makes those of both families; an overlayd removes those with rules of its network
		case daemon == modeFlanneld:
			h.tables[f] = w.filter == filterNFT
		case f < w.families() && w.hasRules(modeFlanneld):
			h.tables[f] = false
		}
	}
	for n, o := range h.overlays {
		if daemon == modeFlanneld {
			w.startsFlanneld(h, o)
		} else {
			w.startsOverlayd(h, o, w.networks[n].vni)
		}
		o.lease, o.local = h.slot, h.slot
	}
	if daemon != modeFlanneld {
		h.claims, h.ghost = true, false
	}
	w.tell()
}

// startsFlanneld: a vxlan device that sends from the host's address is kept, with all that is on it;
// any other is made again, with a MAC that nobody foresees.
func (w *world) startsFlanneld(h *plainHost, o *plainOverlay) {
	if o.device != "vxlan" || o.local != h.slot {
		o.device, o.alias, o.mtu, o.fdb = "vxlan", false, 1450, nil
		o.macs = make([]string, w.families())
	}
	o.by, o.env, o.rules, o.seen = modeFlanneld, modeFlanneld, true, map[int]sight{}
}

// startsOverlayd: it keeps the MAC that it finds, but for one that belongs to an address that it had.
func (w *world) startsOverlayd(h *plainHost, o *plainOverlay, vni int) {
	o.mtu = 1450
	if w.dual {
		o.mtu = 1430
	}
	o.device, o.alias, o.by, o.env, o.rules, o.node = "tun", true, modeKernel, modeKernel, true, true
	o.guard = true
	if h.daemon == modeKernel {
		o.device = "vxlan"
	}
	o.publishes(w, h.slot, vni)
}

// publishes is that an overlayd publishes a slot.
func (o *plainOverlay) publishes(w *world, slot, vni int) {
	if o.macs == nil {
		o.macs = make([]string, w.families())
	}
	for f, mac := range o.macs {
		stale := slices.ContainsFunc(o.former, func(was int) bool { return isDerived(mac, address(f, was), vni) })
		if mac == "" || stale && !isDerived(mac, address(f, slot), vni) {
			o.macs[f] = plainMAC(address(f, slot), vni, 0)
		}
	}
	o.former = append(slices.DeleteFunc(o.former, func(was int) bool { return was == slot }), slot)
	o.former = o.former[max(0, len(o.former)-8/w.families()):] // the node file has room for eight addresses
	o.lease, o.local = slot, slot
}

// learns is what a flanneld has chosen as a MAC.
func (w *world) learns(i, n, family int, mac string) {
	w.hosts[i].overlays[n].macs[family] = mac
	w.tell()
}

// stops is that the daemon of host i ends. Everything stays as it is, but nobody keeps it.
func (w *world) stops(i int, killed bool) {
	h := w.hosts[i]
	if h.daemon != modeFlanneld {
		h.claims, h.ghost = killed, killed
	}
	h.daemon = ""
}

// drainsToKernel is that an overlayd of the kernel dataplane comes in the place of whatever there is, and goes.
func (w *world) drainsToKernel(i int) {
	w.starts(i, modeKernel)
	w.stops(i, false)
}

// cleansUp is `overlayd cleanup`: on a host that is flanneld's what is flanneld's stays, and everything of
// overlayd's goes; else all goes.
func (w *world) cleansUp(i int) {
	h := w.hosts[i]
	h.claims = false
	for _, o := range h.overlays {
		o.node, o.former, o.guard = false, nil, false
		switch {
		case o.by == modeFlanneld:
			if o.alias && w.direct { // flanneld needs nothing on the device
				o.fdb = []map[string]int{{}, {}}
			}
			o.alias, o.mtu = false, 1450
		default:
			o.device, o.fdb, o.seen, o.rules, o.by, o.env = "", nil, nil, false, "", ""
		}
	}
}

// moves is that host i gets another address.
func (w *world) moves(i, slot int) {
	h := w.hosts[i]
	h.slot = slot
	for n, o := range h.overlays {
		if h.daemon != "" {
			o.publishes(w, slot, w.networks[n].vni)
		}
	}
	w.tell()
}

// tell is that all daemons learn of all leases.
func (w *world) tell() {
	for i, h := range w.hosts {
		for n := range h.overlays {
			if h.daemon != "" {
				w.sees(i, n)
			}
		}
	}
}

// sees is that host i knows the leases of a network. An overlayd has then exactly these, and a flanneld leaves
// what it had of a MAC that is another now.
func (w *world) sees(i, n int) {
	o := w.hosts[i].overlays[n]
	before := o.fdb
	o.seen, o.fdb = map[int]sight{}, []map[string]int{{}, {}}
	if o.by == modeFlanneld {
		for f := range before {
			maps.Copy(o.fdb[f], before[f])
		}
	}
	for j, peer := range w.hosts {
		p := peer.overlays[n]
		if j == i || p.lease == 0 || slices.Contains(p.macs, "") {
			continue
		}
		o.seen[j] = sight{p.lease, slices.Clone(p.macs)}
		for f, mac := range p.macs {
			if o.by != modeFlanneld || !w.direct {
				o.fdb[f][mac] = p.lease
			}
		}
	}
}
