package conns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// A shared port is one of those that Linux gives to connections, where few programs listen.
	firstShared = 32768
	ports       = 1 << 16

	// shareTries is how many ports are tried at random. If connections to the store have half of them, almost all ports are so
	// misused: from then on a connection that has one is ended.
	shareTries = 200
)

// Dialer dials a store, as net.Dialer does. If every port of this host is taken, as by a user who has bound them all, it
// shares one. That takes CAP_NET_ADMIN. Its methods may be called from several goroutines.
type Dialer struct {
	net.Dialer // without a Resolver: names are asked for by TCP if every UDP port is taken

	Log *slog.Logger

	taken   atomic.Bool  // every port was at the last dial, and that was logged
	crowded atomic.Int64 // when MakeRoom logged last, in seconds of the epoch
}

// DialContext connects to an address.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := d.Dialer
	dialer.Resolver = d.Names()
	c, err := dialer.DialContext(ctx, network, address)
	of := new(net.OpError)
	switch {
	case err == nil:
		d.taken.Store(false)
		return c, nil
	case !errors.Is(err, unix.EADDRNOTAVAIL) || !errors.As(err, &of) || !noPort():
		return nil, err
	}
	to, ok := of.Addr.(*net.TCPAddr)
	if !ok {
		return nil, err
	}
	if !d.taken.Swap(true) {
		d.Log.WarnContext(ctx, "every TCP port of this host is taken: a connection to the store shares one", "err", err,
			"fix", "end the program that has the ports, which ss -Htanp names, or let its user open fewer files (ulimit -n)")
	}
	if c, ok, shared := d.share(ctx, network, to); ok {
		return c, shared
	}
	return nil, fmt.Errorf("every TCP port of this host is taken: %w", err)
}

// share dials from a port that others may have, too. ok is false if no port works, or if the daemon may not share one.
func (d *Dialer) share(ctx context.Context, network string, to *net.TCPAddr) (c net.Conn, ok bool, err error) {
	dialer := d.Dialer
	for try := 0; try < shareTries && ctx.Err() == nil; try++ {
		port := firstShared + rand.IntN(ports-firstShared)
		if port == to.Port { // such a connection could lead to itself
			continue
		}
		dialer.ControlContext = func(_ context.Context, network, address string, conn syscall.RawConn) error {
			if d.Control != nil {
				if err := d.Control(network, address, conn); err != nil {
					return err
				}
			}
			if err := bindShared(conn, network, port); err != nil {
				return err
			}
			if try >= shareTries/2 {
				_ = endConnection(port, to.AddrPort()) // if it is still there, the dial says so
			}
			return nil
		}
		if c, err = dialer.DialContext(ctx, network, to.String()); !errors.Is(err, unix.EADDRNOTAVAIL) {
			return c, !errors.Is(err, unix.EPERM), err
		}
	}
	return nil, false, err
}

// bindShared binds a socket to a port that others may have, too: in repair mode (TCP_REPAIR, Linux 3.5) the kernel does not mind.
func bindShared(conn syscall.RawConn, network string, port int) (err error) {
	var at unix.Sockaddr = &unix.SockaddrInet4{Port: port}
	if strings.HasSuffix(network, "6") {
		at = &unix.SockaddrInet6{Port: port}
	}
	broken := conn.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON); err != nil {
			return
		}
		if err = unix.Bind(int(fd), at); err != nil {
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF)
	})
	return errors.Join(broken, err)
}

// noPort reports whether the kernel has no TCP port to give. An address that cannot be reached for want of an address of
// this host has the same error as that.
func noPort() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Bind(fd, &unix.SockaddrInet4{}), unix.EADDRINUSE)
}

// Names returns a resolver that asks name servers by TCP if every UDP port is taken.
func (d *Dialer) Names() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: d.dialNameServer}
}

// dialNameServer connects to a name server, by TCP if every UDP port is taken.
func (d *Dialer) dialNameServer(ctx context.Context, network, address string) (net.Conn, error) {
	if strings.HasPrefix(network, "udp") {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if !errors.Is(err, unix.EAGAIN) {
			return c, err
		}
	}
	return d.DialContext(ctx, "tcp", address)
}

// endConnection ends the connection of this host from a port to an address (SOCK_DESTROY, Linux 4.5 with CONFIG_INET_DIAG_DESTROY).
func endConnection(port int, to netip.AddrPort) error {
	routes, err := netlink.RouteGet(to.Addr().AsSlice())
	if err != nil {
		return err
	}
	if len(routes) == 0 {
		return unix.ENETUNREACH
	}
	from, _ := netip.AddrFromSlice(routes[0].Src)
	return destroy(netip.AddrPortFrom(from, uint16(port)), to, anyCookie)
}

// anyCookie is for a socket that is known by its addresses alone.
var anyCookie = [2]uint32{nl.TCPDIAG_NOCOOKIE, nl.TCPDIAG_NOCOOKIE}

// destroy ends a connection of this host (SOCK_DESTROY). netlink.SocketDestroy knows IPv4 alone.
func destroy(from, to netip.AddrPort, cookie [2]uint32) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.AddRawData(inetDiag(from, to, cookie))
	_, err := req.Execute(unix.NETLINK_SOCK_DIAG, 0)
	return err
}

// inetDiag is a request about one socket: struct inet_diag_req_v2 of linux/inet_diag.h.
func inetDiag(from, to netip.AddrPort, cookie [2]uint32) []byte {
	family, src, dst := byte(unix.AF_INET6), [16]byte{}, [16]byte{}
	if to.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	copy(src[:], from.Addr().Unmap().AsSlice())
	copy(dst[:], to.Addr().Unmap().AsSlice())
	b := []byte{family, unix.IPPROTO_TCP, 0, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(append(append(b, src[:]...), dst[:]...), 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, cookie[0])
	return binary.NativeEndian.AppendUint32(b, cookie[1])
}
