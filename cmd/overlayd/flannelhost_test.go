package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// flannelHost is a host as flanneld v0.28.9 leaves it with --ip-masq, of each family of the
// overlay (facts of flannel, 3 and 5 to 7).
type flannelHost struct {
	*host
	networks, subnets []netip.Prefix
	macs              []net.HardwareAddr // of its devices, random
	direct            bool               // DirectRouting, with --ip-blackhole-route
}

const directNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan","DirectRouting":true}}`

// flannelOn writes the subnet file, by which pods are made, and lets the host forward, as the CNI
// plugin does.
func flannelOn(h *host, networks, subnets []netip.Prefix) *flannelHost {
	h.c.t.Helper()
	f := &flannelHost{host: h, networks: networks, subnets: subnets}
	text := ""
	for i, name := range []string{"FLANNEL_", "FLANNEL_IPV6_"}[:len(subnets)] {
		text += fmt.Sprintf("%[1]sNETWORK=%[2]s\n%[1]sSUBNET=%[3]s\n", name, networks[i], netip.PrefixFrom(subnets[i].Addr().Next(), subnets[i].Bits()))
		f.macs = append(f.macs, net.HardwareAddr{0x02 | byte(rand.Uint32())&^0x03, byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())})
	}
	text += "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile(h.subnetFile, []byte(text), 0o644); err != nil {
		h.c.t.Fatal(err)
	}
	h.Must(func() error {
		for i, path := range []string{ipForward, ip6Forward}[:len(subnets)] {
			if err := rtnl.SetSysctl(path, "1"); err != nil {
				return fmt.Errorf("subnet %s: %w", subnets[i], err)
			}
		}
		return nil
	})
	return f
}

func flannelDevice(i int) string { return []string{"flannel.1", "flannel-v6.1"}[i] }

// devices makes the devices with their addresses (5.1 to 5.3).
func (f *flannelHost) devices() {
	f.c.t.Helper()
	for i, subnet := range f.subnets {
		f.Must(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			// Without a Port the attribute is not sent, and without UDPCSum neither is that.
			dev := &netlink.Vxlan{
				LinkAttrs: netlink.LinkAttrs{Name: flannelDevice(i), HardwareAddr: f.macs[i], MTU: 1450},
				VxlanId:   1, VtepDevIndex: eth0.Attrs().Index, SrcAddr: f.addrs[i].AsSlice(),
			}
			if err := netlink.LinkAdd(dev); err != nil {
				return fmt.Errorf("add %s: %w", flannelDevice(i), err)
			}
			if err := rtnl.SetSysctl(ip6Conf+"/"+flannelDevice(i)+"/accept_ra", "0"); err != nil {
				return err
			}
			return netlink.LinkSetUp(dev)
		})
		f.Addr(flannelDevice(i), netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()).String())
	}
}

// meet programs a peer (5.4, 5.5).
func (f *flannelHost) meet(peer *flannelHost) {
	f.c.t.Helper()
	for i, subnet := range peer.subnets {
		f.Must(func() error {
			if f.direct {
				err := netlink.RouteReplace(&netlink.Route{Dst: rtnl.IPNet(f.subnets[i]), Type: unix.RTN_BLACKHOLE})
				return errors.Join(err, netlink.RouteReplace(&netlink.Route{Dst: rtnl.IPNet(subnet), Gw: peer.addrs[i].AsSlice()}))
			}
			dev, err := netlink.LinkByName(flannelDevice(i))
			if err != nil {
				return err
			}
			return wirePeer(dev.Attrs().Index, subnet, peer.addrs[i], peer.macs[i])
		})
	}
}

// lease is the text of the lease (3).
func (f *flannelHost) lease() (key, value string) {
	l := control.Lease{Subnet: f.subnets[0]}
	v6, backend6 := "null", ""
	if len(f.subnets) > 1 {
		l.IPv6Subnet = f.subnets[1]
		v6 = fmt.Sprintf("%q", f.addrs[1])
		backend6 = fmt.Sprintf(`,"BackendV6Data":{"VNI":1,"VtepMAC":%q}`, f.macs[1])
	}
	return subnets + l.Key(), fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":%s,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}%s}`, f.addrs[0], v6, f.macs[0], backend6)
}

// flannelIPT are the rules of one family in iptables mode, flannelNFT in nftables mode (6).
const (
	flannelIPT = `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s OWN -d NETWORK -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s NETWORK -d OWN -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s NETWORK -d OWN -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s NETWORK ! -d MULTICAST -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s NETWORK -d NETWORK -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s NETWORK -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d NETWORK -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`
	flannelNFT = `table IP flannel-TABLE { comment "rules for flannel-TABLE"
	chain postrtg { comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		IP saddr OWN IP daddr NETWORK return
		IP saddr NETWORK IP daddr OWN return
		IP saddr != OWN IP daddr NETWORK return
		IP saddr NETWORK IP daddr != MULTICAST masquerade fully-random
		IP saddr != NETWORK IP daddr NETWORK masquerade fully-random
	}
	chain forward { comment "chain to accept flannel traffic"
		type filter hook forward priority filter; policy accept;
		IP saddr NETWORK accept
		IP daddr NETWORK accept
	}
}
`
)

// writeRules writes flannel's rules.
func (f *flannelHost) writeRules(filter packetFilter) {
	f.c.t.Helper()
	for i, own := range f.subnets {
		restore, ip, table, multicast := "iptables-restore", "ip", "ipv4", "224.0.0.0/4"
		if own.Addr().Is6() {
			restore, ip, table, multicast = "ip6tables-restore", "ip6", "ipv6", "ff00::/8"
		}
		text := strings.NewReplacer("OWN", own.String(), "NETWORK", f.networks[i].String(), "MULTICAST", multicast, "IP", ip, "TABLE", table)
		if filter == filterNFT {
			f.feed(text.Replace(flannelNFT), "nft", "-f", "-")
		} else {
			f.feed(text.Replace(flannelIPT), restore, "--noflush", "--wait")
		}
	}
}
