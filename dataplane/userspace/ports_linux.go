package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// openReceivers binds n sockets to the address that the VTEPs send to. The kernel
// gives each flow, by its outer ports, to one of them.
func openReceivers(log *slog.Logger, local netip.AddrPort, n int, offloads Offloads) (rs []*udpReceiver, gro bool, err error) {
	for i := range n {
		r, on, err := openReceiver(log, local, i > 0, offloads.has(UDPGRO))
		if err == nil && i == 0 && n > 1 {
			// The first is bound without it: nobody else's socket may share the port.
			err = r.setup(func(fd int) error { return setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		}
		if r != nil {
			rs = append(rs, r)
		}
		if err != nil {
			for _, r := range rs {
				r.close()
			}
			return nil, false, err
		}
		gro = on
	}
	return rs, gro, nil
}

// openReceiver binds one of the sockets. gro says whether UDP_GRO is wanted, and
// then whether it is there.
func openReceiver(log *slog.Logger, local netip.AddrPort, share, gro bool) (_ *udpReceiver, hasGRO bool, err error) {
	var o socketOption
	if share {
		o = sharePort
	}
	fd, err := openUDP(local, o)
	if err != nil {
		return nil, false, err
	}
	size, err := growBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	if err == nil {
		err = receiveTOS(fd, local.Addr())
	}
	if err != nil {
		unix.Close(fd)
		return nil, false, fmt.Errorf("set up receiving socket: %w", err)
	}
	if size < receiveBuffer && !share {
		log.Warn("UDP receive buffer is small, expect loss under load", "bytes", size, "wanted", receiveBuffer,
			"fix", "sysctl -w net.core.rmem_max=16777216")
	}
	if gro {
		hasGRO = setOption(fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	}
	r, err := newUDPReceiver(fd, "udp "+local.String())
	return r, hasGRO, err
}

// receiveTOS asks for the outer TOS or traffic class with each datagram, for ECN.
func receiveTOS(fd int, local netip.Addr) error {
	if local.Is4() {
		return setOption(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	}
	return setOption(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
}

func setOption(fd, level, name, value int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, value))
}

// setup runs f with the socket.
func (r *udpReceiver) setup(f func(fd int) error) error {
	var ferr error
	err := r.conn.Control(func(fd uintptr) { ferr = f(int(fd)) })
	return errors.Join(err, ferr)
}
