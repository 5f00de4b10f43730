package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// vxlan makes h a kernel VTEP for each of its underlays as flannel does, over IPv4
// with or without outer UDP checksums.
func (h *testHost) vxlan(udpcsum bool) {
	h.tb.Helper()
	h.vteps = nil
	for _, a := range h.under {
		h.vteps = append(h.vteps, dataplane.VTEP{Addr: a, MAC: dataplane.MAC(a, h.vni), VNI: h.vni})
	}
	for i, p := range h.peers() {
		h.Must(func() error {
			under, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			name := h.device(p.Addr)
			if err := addVXLAN(h, name, under.Attrs().Index, i, udpcsum); err != nil {
				return fmt.Errorf("add vxlan device: %w", err)
			}
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			for _, s := range p.Subnets {
				base := netip.PrefixFrom(s.Addr(), s.Addr().BitLen())
				if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(base), Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(l)
		})
	}
}

// device returns the name of the vxlan device for the underlay of an address.
func (h *testHost) device(under netip.Addr) string {
	if under.Is6() {
		return fmt.Sprintf("flannel-v6.%d", h.vni)
	}
	return fmt.Sprintf("flannel.%d", h.vni)
}

// addVXLAN makes the device of the i-th VTEP. It is written out because the netlink
// library cannot say noudpcsum.
func addVXLAN(h *testHost, name string, under, i int, udpcsum bool) error {
	flag := map[bool]byte{true: 1}
	vtep := h.vteps[i]
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(vtep.VNI))
	data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(under)))
	local := nl.IFLA_VXLAN_LOCAL
	if vtep.Addr.Is6() {
		local = nl.IFLA_VXLAN_LOCAL6
	}
	data.AddRtAttr(local, vtep.Addr.AsSlice())
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, testPort))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, []byte{0})
	if vtep.Addr.Is4() {
		data.AddRtAttr(nl.IFLA_VXLAN_UDP_CSUM, []byte{flag[udpcsum]})
	} else {
		data.AddRtAttr(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, []byte{0}) // as the library says for flannel
		data.AddRtAttr(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, []byte{0})
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(h.mtu()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, vtep.MAC[:]))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// vxlanPeer gives h, a kernel VTEP, neighbours, FDB entries and routes for a peer.
func (h *testHost) vxlanPeer(to *testHost) {
	h.tb.Helper()
	for _, p := range to.peers() {
		h.Must(func() error {
			l, err := netlink.LinkByName(h.device(p.Addr))
			if err != nil {
				return err
			}
			i, mac := l.Attrs().Index, net.HardwareAddr(p.MAC[:])
			errs := []error{netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: unix.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF,
				IP: p.Addr.AsSlice(), HardwareAddr: mac})}
			for _, s := range p.Subnets {
				base := s.Addr().AsSlice()
				errs = append(errs,
					netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: unix.NUD_PERMANENT, IP: base, HardwareAddr: mac}),
					netlink.RouteReplace(&netlink.Route{LinkIndex: i, Dst: rtnl.IPNet(s), Gw: base, Flags: unix.RTNH_F_ONLINK}))
			}
			return errors.Join(errs...)
		})
	}
}
