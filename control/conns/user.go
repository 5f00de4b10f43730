package conns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// UserOf returns the uid of the user who has the other end of a TCP connection, which is on this host. It reads nothing of the
// connection, and needs no rights. If the client has closed the connection, the error is net.ErrClosed.
func UserOf(c *net.TCPConn) (uid uint32, err error) {
	from, to := unmapped(c.RemoteAddr()), unmapped(c.LocalAddr())
	uid, err = userOf(from, to)
	// A client that has gone may have left its port to another user's. Its end of this connection would not be established then.
	if open, broken := established(c); broken != nil || !open {
		return 0, errors.Join(net.ErrClosed, broken)
	}
	return uid, err
}

// userOf asks for the one socket with these addresses. netlink.SocketGet lists all sockets, and takes one of other addresses too.
func userOf(from, to netip.AddrPort) (uint32, error) {
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	req.AddRawData(inetDiag(from, to, anyCookie))
	answers, err := req.Execute(unix.NETLINK_SOCK_DIAG, 0)
	if err != nil {
		return 0, fmt.Errorf("find the socket of %s: %w", from, err)
	}
	for _, b := range answers {
		if uid, ok := parseUser(b, from, to); ok {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("find the socket of %s: %w", from, unix.ENOENT)
}

// parseUser reads a struct inet_diag_msg of linux/inet_diag.h. The kernel may answer with a listener at the port. A socket that
// its process has closed has no inode, and in some kernels it is root's.
func parseUser(b []byte, from, to netip.AddrPort) (uid uint32, ok bool) {
	if len(b) < 72 || b[1] != unix.BPF_TCP_ESTABLISHED || binary.NativeEndian.Uint32(b[68:]) == 0 {
		return 0, false
	}
	length := 4
	if b[0] == unix.AF_INET6 {
		length = 16
	}
	src, _ := netip.AddrFromSlice(b[8 : 8+length])
	dst, _ := netip.AddrFromSlice(b[24 : 24+length])
	return binary.NativeEndian.Uint32(b[64:]), netip.AddrPortFrom(src.Unmap(), binary.BigEndian.Uint16(b[4:])) == from &&
		netip.AddrPortFrom(dst.Unmap(), binary.BigEndian.Uint16(b[6:])) == to
}

// unmapped returns the address of an end of a TCP connection.
func unmapped(a net.Addr) netip.AddrPort {
	at := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// established reports whether neither end of a connection has closed it.
func established(c *net.TCPConn) (is bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var info *unix.TCPInfo
	broken := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(broken, err); err != nil {
		return false, err
	}
	return info.State == unix.BPF_TCP_ESTABLISHED, nil
}
