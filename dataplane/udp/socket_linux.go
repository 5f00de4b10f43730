package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// OuterTTL is the TTL or hop limit of what the sockets send: that of the kernel's vxlan device.
const OuterTTL = 64

// Option is how a UDP socket differs from the usual.
type Option uint8

// The options of a socket.
const (
	SharePort Option = 1 << iota // it is one of several sockets of the port
	SetDF                        // nobody may fragment what it sends
)

// Open makes a non-blocking UDP socket bound to local. What it sends has, unless
// SetDF is given, DF clear, as the kernel's vxlan device sends: the underlay
// may fragment it, and this host believes no ICMP about the path (IP_PMTUDISC_OMIT, Linux
// 3.15): with IP_PMTUDISC_DONT three forged packets make it fragment all it sends. Over IPv6
// this host alone can fragment, to what it knows of the path. With SetDF the kernel refuses only what
// is longer than the MTU of the link (IP_PMTUDISC_PROBE): with IP_PMTUDISC_DO it would refuse what
// ICMP says, and believe it for ten minutes. It still notes that, for PathProbe.
//
// The flow label of IPv6 is 0, as that of the kernel's vxlan device and of an uplink (dataplane/uplink). Routers and queueing disciplines
// that go by the label would else part the superpackets of a flow from its other packets.
func Open(local netip.AddrPort, o Option) (int, error) {
	family := unix.AF_INET
	discover, discover6 := unix.IP_PMTUDISC_OMIT, unix.IPV6_PMTUDISC_WANT
	if o&SetDF != 0 {
		discover, discover6 = unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE
	}
	options := []sockopt{{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover}, {unix.IPPROTO_IP, unix.IP_TTL, OuterTTL}}
	var sa unix.Sockaddr
	if local.Addr().Is4() {
		sa = &unix.SockaddrInet4{Addr: local.Addr().As4(), Port: int(local.Port())}
	} else {
		family = unix.AF_INET6
		sa = &unix.SockaddrInet6{Addr: local.Addr().As16(), Port: int(local.Port())}
		options = []sockopt{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, discover6},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, OuterTTL},
			{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 0},
		}
	}
	if o&SharePort != 0 {
		options = append(options, sockopt{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		unix.Close(fd)
		return -1, bindError(local, err)
	}
	return fd, nil
}

// Mark gives what a socket sends a firewall mark (SO_MARK). The error is EPERM without CAP_NET_ADMIN; since
// Linux 5.17 CAP_NET_RAW is enough, too.
func Mark(fd int, mark uint32) error {
	return os.NewSyscallError("setsockopt SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
}

// LocalAddr returns what a socket is bound to.
func LocalAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
}

type sockopt struct{ level, name, value int }

// CheckPort returns why the addresses of one port cannot be bound. Devices for whose names goes returns true
// do not count: they will be gone by then.
func CheckPort(conn *rtnl.Conn, locals []netip.AddrPort, goes func(name string) bool) error {
	for _, local := range locals {
		devices, err := conn.PortHolders(local.Port())
		if err != nil {
			return err
		}
		devices = slices.DeleteFunc(devices, func(name string) bool { // those of the other family hold other sockets
			return goes(name) && strings.HasPrefix(name, dataplane.DevicePrefixV6) != local.Addr().Is6()
		})
		stays := func(name string) bool { return !goes(name) }
		if len(devices) > 0 && !slices.ContainsFunc(devices, stays) {
			continue
		}
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
		if err != nil {
			return bindError(local, err)
		}
		c.Close()
	}
	return nil
}

// bindError tells why a bind was refused.
func bindError(local netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE) && local.Port() == 0:
		return fmt.Errorf("bind UDP %s: %w: %w", local, ErrNoPort, err)
	case errors.Is(err, unix.EADDRINUSE):
		return &PortTakenError{Local: local, Devices: portHolders(local.Port()), Err: err}
	case errors.Is(err, unix.EADDRNOTAVAIL):
		if device, vrf := vrfOf(local.Addr()); vrf != "" {
			return &VRFError{Local: local, Device: device, VRF: vrf, Err: err}
		}
		return fmt.Errorf("bind UDP %s: the address is on no interface of this host, or still tentative: %w", local, err)
	}
	return fmt.Errorf("bind UDP %s: %w", local, err)
}

// vrfOf returns the interface of an address and its VRF, in the network namespace of the calling thread, if that has one and it can be known.
func vrfOf(addr netip.Addr) (device, vrf string) {
	conn, err := rtnl.Open()
	if err != nil {
		return "", ""
	}
	defer conn.Close()
	links, _ := conn.Links() // without them the error is the general one
	return inVRF(links, func(l netlink.Link) bool {
		addrs, _ := conn.Addrs(l)
		return slices.Contains(addrs, addr)
	})
}

// inVRF returns the names of the first link that has the address and is in a VRF, and of that.
func inVRF(links []netlink.Link, has func(netlink.Link) bool) (device, vrf string) {
	for _, l := range links {
		for _, master := range links {
			if master.Type() == "vrf" && master.Attrs().Index == l.Attrs().MasterIndex && has(l) {
				return l.Attrs().Name, master.Attrs().Name
			}
		}
	}
	return "", ""
}

// portHolders returns the vxlan devices that have a UDP port in the network namespace of the
// calling thread, as far as that can be known. If the VNI has changed, that may be the device of an
// earlier kernel dataplane.
func portHolders(port uint16) []string {
	conn, err := rtnl.Open()
	if err != nil {
		return nil
	}
	defer conn.Close()
	devices, _ := conn.PortHolders(port) // without them the error is the general one
	return devices
}

// GrowBuffer sets a socket's buffer to size bytes, and if CAP_NET_ADMIN is
// missing for that (or is that of a user namespace) to the most that
// net.core.{r,w}mem_max allow. force and plain are the names of the two socket options. It returns the size in effect.
func GrowBuffer(fd, force, plain, size int) (int, error) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size); err != nil {
			return 0, os.NewSyscallError("setsockopt", err)
		}
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, plain)
	return n / 2, os.NewSyscallError("getsockopt", err) // the kernel reports its double
}

// ReceiveNothing makes a socket drop what arrives for it, and hold no memory for it.
func ReceiveNothing(fd int) error {
	filter := [1]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("attach socket filter: %w", err)
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0))
}

// Drops returns how many datagrams the kernel dropped at a socket so far, because
// its buffer was full or the checksum of one of more than 76 bytes was wrong (SO_MEMINFO, Linux 4.12; 0 without it).
// Unlike SO_RXQ_OVFL it costs nothing per packet and needs no later one to tell.
func Drops(fd int) uint64 {
	const drops = 8               // SK_MEMINFO_DROPS in linux/sock_diag.h
	var meminfo [drops + 1]uint32 // SK_MEMINFO_VARS of it
	n := uint32(unsafe.Sizeof(meminfo))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&meminfo)), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0
	}
	return uint64(meminfo[drops])
}
