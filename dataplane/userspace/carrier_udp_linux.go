package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

const (
	// receiveBuffer, in bytes, is doubled by the kernel, which counts its own overhead. With
	// the default of 212992 bytes, three superpackets, TCP from a kernel peer loses
	// a thousand times as many segments.
	receiveBuffer = 16 << 20
	sendBuffer    = 8 << 20
)

// udpCarrier is the carrier of one family that consists of UDP sockets: some that receive at the
// port of the VTEPs, and some that all workers send by.
type udpCarrier struct {
	family int
	in     []*udpReceiver
	gro    bool // the receivers have UDP_GRO
	out    *sendSockets
}

// NewPort makes a Port of UDP sockets for networks whose Config has the same Port and the same Local
// addresses. It uses Log, Underlays, Port, Offloads and DF of cfg; an error
// names the field. Run has to be called, once: it releases what the networks made it acquire.
func NewPort(cfg Config) (*Port, error) {
	if err := cfg.checkPort(); err != nil {
		return nil, fmt.Errorf("open UDP port: %w", err)
	}
	return newUDPPort(cfg), nil
}

// newUDPPort makes a Port with a udpCarrier for each underlay.
func newUDPPort(cfg Config) *Port {
	var openers []opener
	for _, local := range cfg.locals() {
		openers = append(openers, opener{
			description: description{name: "udp " + local.String(), family: familyOf(local.Addr()), headroom: encap.HeaderLen},
			open:        func(workers int) (carrier, error) { return openUDPCarrier(cfg, local, workers) },
		})
	}
	return newPort(cfg, openers...)
}

// openUDPCarrier opens the sockets of one family, with one that receives for each worker.
func openUDPCarrier(cfg Config, local netip.AddrPort, workers int) (carrier, error) {
	in, gro, err := openReceivers(cfg.Log, local, workers, cfg.Offloads)
	if err != nil {
		return nil, err
	}
	c := &udpCarrier{family: familyOf(local.Addr()), in: in, gro: gro}
	if c.out, err = openSendSockets(cfg.Log, local.Addr(), cfg.Offloads, cfg.DF); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// newSender implements carrier. All senders share the sockets.
func (c *udpCarrier) newSender(int) sender {
	return newBatcher(newUDPTransmitter(c.out, c.family == family6), c.out.limit())
}

// receivers implements carrier.
func (c *udpCarrier) receivers() (rs []receiver) {
	for _, r := range c.in {
		rs = append(rs, r)
	}
	return rs
}

// refresh implements carrier.
func (c *udpCarrier) refresh(f *forwarding) { c.out.refresh(f) }

// addTo implements carrier.
func (c *udpCarrier) addTo(s *dataplane.Stats) {
	for _, r := range c.in {
		s.Drops[dataplane.DropQueueFull] += r.drops()
		s.Offload.RxBatches += r.batches.Load()
	}
}

// close implements carrier.
func (c *udpCarrier) close() {
	for _, r := range c.in {
		r.close()
	}
	if c.out != nil {
		c.out.close()
	}
}

// describe implements describer.
func (c *udpCarrier) describe() []any {
	return []any{"udp_segment", c.out.segments.Load(), "udp_gro", c.gro}
}

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
	var o udp.Option
	if share {
		o = udp.SharePort
	}
	fd, err := udp.Open(local, o)
	if err != nil {
		return nil, false, err
	}
	size, err := udp.GrowBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
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
