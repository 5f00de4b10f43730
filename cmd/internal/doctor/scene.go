package doctor

import (
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/admin"
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

	vni     uint32         // of devices, or of a session
	port    uint16         // UDP; 0: it has none, if isPlain, else it is not known
	devices []netlink.Link // of the overlay, that are there
	device  string         // underlay interface
}

// isMute reports whether there is a daemon, and it does not answer as it should.
func (s *Scene) isMute() bool {
	return s.Daemon == nil && (errors.Is(s.Absent, admin.ErrAnswer) || errors.Is(s.Absent, admin.ErrVersion))
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

// isServed reports whether a session carries the overlay: only then the daemon says what its backend is.
func (o *overlay) isServed() bool { return o.status != nil && !o.status.SessionStart.IsZero() }

// isPlain reports whether the overlay is known to have no tunnel, as with the backends host-gw and alloc.
func (o *overlay) isPlain() bool { return o.isServed() && o.status.Mode == "" }

// isEmpty reports whether this host is not known to have a subnet, so that there is nothing to look for.
func (o *overlay) isEmpty() bool { return len(o.subnets()) == 0 || len(o.file.Networks()) == 0 }

// untold is why a check cannot be made that needs the daemon, and what has to be done.
func (o *overlay) untold() string { return "only the daemon can tell: " + o.todo() }

// todo is what has to be done so that the daemon can tell.
func (o *overlay) todo() string {
	switch {
	case o.scene.Daemon == nil && !o.scene.isMute():
		return "start overlayd"
	case !o.isServed():
		return "see the check daemon, which says why it does not carry this network now"
	}
	return "wait until it is ready"
}

// findDevices finds the overlay's devices: by its VNI, or by its addresses if no session says which that is.
func (o *overlay) findDevices() {
	links, _ := netlink.LinkList() // without any, each check says what it misses
	for _, l := range links {
		vni, ok := dataplane.DeviceVNI(l.Attrs().Name)
		if !ok || o.isPlain() || o.isServed() && vni != o.vni || !o.isServed() && !o.hasBase(l) {
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
