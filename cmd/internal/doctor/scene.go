package doctor

import (
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// Scene is what is known before the checks.
type Scene struct {
	Daemon *status.Daemon // nil: none answers
	Absent error          // why none answers
	Files  []string       // subnet files: of the only network, or of each
	Peer   string         // the only peer that matters; empty: all
}

// overlay is one overlay of this host. What is not known is zero.
type overlay struct {
	scene   *Scene
	name    string          // of its network, if there are several
	status  *status.Network // nil: no daemon says
	file    subnetfile.File
	fileErr error

	vni     uint32
	port    uint16
	devices []netlink.Link // of the overlay, that are there
	device  string         // underlay interface
}

// overlays returns those of the daemon, or without one those of the subnet files.
func (s *Scene) overlays() (all []overlay) {
	if s.Daemon != nil {
		for i := range s.Daemon.Networks {
			n := &s.Daemon.Networks[i]
			all = append(all, s.overlay(s.fileOf(n.Name), n))
		}
		return all
	}
	for _, file := range s.Files {
		if o := s.overlay(file, nil); !errors.Is(o.fileErr, fs.ErrNotExist) {
			if len(s.Files) > 1 {
				o.name = strings.TrimSuffix(filepath.Base(file), ".env")
			}
			all = append(all, o)
		}
	}
	return all
}

// fileOf is the subnet file of a network.
func (s *Scene) fileOf(network string) string {
	for _, file := range s.Files {
		if network == "" || filepath.Base(file) == network+".env" {
			return file
		}
	}
	return ""
}

func (s *Scene) overlay(file string, n *status.Network) overlay {
	o := overlay{scene: s, status: n}
	o.file, o.fileErr = subnetfile.Load(file)
	if n != nil {
		o.name, o.vni, o.port = n.Name, n.VNI, n.Port
		if n.Underlay != nil {
			o.device = n.Underlay.Interface
		}
	}
	o.findDevices()
	return o
}

// findDevices finds the overlay's devices: by its VNI, or by its addresses if no daemon says which that is.
func (o *overlay) findDevices() {
	links, _ := netlink.LinkList() // without any, each check says what it misses
	for _, l := range links {
		vni, ok := dataplane.DeviceVNI(l.Attrs().Name)
		if !ok || o.status != nil && vni != o.vni || o.status == nil && !o.hasBase(l) {
			continue
		}
		o.vni, o.devices = vni, append(o.devices, l)
		if v, ok := l.(*netlink.Vxlan); ok {
			if o.port == 0 {
				o.port = uint16(v.Port)
			}
			if i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == v.VtepDevIndex }); o.device == "" && i >= 0 {
				o.device = links[i].Attrs().Name
			}
		}
	}
}

// hasBase reports whether a device has the base address of one of the overlay's own subnets.
func (o *overlay) hasBase(l netlink.Link) bool {
	addrs, _ := netlink.AddrList(l, netlink.FAMILY_ALL) // none: it is not the device
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		ip, ok := netip.AddrFromSlice(a.IP)
		return ok && slices.ContainsFunc(o.subnets(), func(p netip.Prefix) bool { return p.Addr() == ip.Unmap() })
	})
}

// subnets are this node's own.
func (o *overlay) subnets() []netip.Prefix {
	if o.status != nil && o.status.Lease != nil {
		return o.status.Lease.Subnets
	}
	return o.file.Subnets()
}

func (o *overlay) deviceNames() (names []string) {
	for _, l := range o.devices {
		names = append(names, l.Attrs().Name)
	}
	return names
}

// locals are the addresses to which peers send.
func (o *overlay) locals() (all []netip.Addr) {
	if o.status != nil && o.status.Underlay != nil {
		for _, e := range o.status.Underlay.Ends {
			all = append(all, e.Local)
		}
		return all
	}
	for _, l := range o.devices {
		if v, ok := l.(*netlink.Vxlan); ok {
			if ip, ok := netip.AddrFromSlice(v.SrcAddr); ok && !ip.IsUnspecified() {
				all = append(all, ip.Unmap())
			}
		}
	}
	return all
}

// vteps are the underlay addresses of the peers.
func (o *overlay) vteps() (all []netip.Addr) {
	add := func(ip netip.Addr) {
		if ip.IsValid() && !ip.IsUnspecified() && !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	if o.status != nil {
		for _, p := range o.status.Peers {
			add(p.VTEP)
		}
		return all
	}
	for _, l := range o.devices {
		entries, _ := netlink.NeighList(l.Attrs().Index, bridgeFamily) // none: nothing is known of peers
		for _, e := range entries {
			ip, _ := netip.AddrFromSlice(e.IP)
			add(ip.Unmap())
		}
	}
	return all
}

// bridgeFamily is AF_BRIDGE: its neighbours are the FDB of a vxlan device.
const bridgeFamily = 7
