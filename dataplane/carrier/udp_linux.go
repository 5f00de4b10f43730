package carrier

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

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
	shield *shield

	cfg    UDPConfig
	detour *udp.Detour       // from the port of cfg to the receivers, which have others; nil: they have the port (move_linux.go)
	moved  []<-chan struct{} // closed once each receiver has made its last move
}

// UDPConfig tells what UDP sockets a carrier is made of.
type UDPConfig struct {
	Log   *slog.Logger
	Local netip.AddrPort // the address and port to which the VTEPs send

	Segment bool // many datagrams per send (UDP_SEGMENT), if the kernel has it
	GRO     bool // many datagrams per receive (UDP_GRO), likewise
	// ExpectTunnel makes Tunnel warn if it does not work, and use it also for links for which the kernel splits
	// superpackets.
	ExpectTunnel bool
	// DF sets Don't Fragment over IPv4. Over IPv6 no router fragments.
	DF bool

	// MinPathMTU is the smallest path MTU, in bytes of the underlay, that is believed, with DF and over IPv6; 0: DefaultMinPathMTU.
	MinPathMTU int
	// Mark is the firewall mark of sent packets; 0: none. A process that may not set marks sends without.
	Mark uint32

	// Inherited has the receiving sockets that another process has exported: one for each worker, or
	// none. They belong to the carrier, which closes them even if it cannot be opened.
	Inherited []*os.File
	// InheritedUplink is the file of the uplink of another process, or nil. Like Inherited it belongs to the carrier.
	InheritedUplink *os.File
}

// UDP returns the opener of a carrier of UDP sockets. Its datagrams may be of any VNI.
func UDP(cfg UDPConfig) Opener {
	o := Opener{
		Description: Description{Family: FamilyOf(cfg.Local.Addr()), Headroom: encap.HeaderLen},
		Open: func(workers int) (Carrier, error) {
			c, err := openUDPCarrier(cfg, cfg.Local, workers)
			for i, f := range cfg.Inherited {
				if err != nil || i >= workers { // whoever opens again binds again; nobody would read what comes to more
					f.Close()
				}
			}
			cfg.Inherited = nil
			return c, err
		},
	}
	o.OpenBeside = func(workers int) (Carrier, error) {
		if len(cfg.Inherited) > 0 { // nobody else has the port
			return o.Open(workers)
		}
		return openUDPCarrierBeside(cfg, workers)
	}
	return o
}

// openUDPCarrier opens the sockets of one family, with one that receives at an address for each worker.
func openUDPCarrier(cfg UDPConfig, at netip.AddrPort, workers int) (*udpCarrier, error) {
	in, gro, err := openReceivers(cfg, at, workers)
	if err != nil {
		return nil, err
	}
	inherited := len(cfg.Inherited) > 0
	cfg.Inherited = nil // the receivers have them: what is bound later is new
	c := &udpCarrier{family: FamilyOf(cfg.Local.Addr()), in: in, gro: gro, cfg: cfg, shield: openShield(FamilyOf(cfg.Local.Addr()))}
	if inherited {
		c.shield.last.drops = c.dropped() // these the process before has counted
	}
	if c.out, err = openSendSockets(cfg, in[0].now); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// NewSender implements Carrier. All senders share the sockets.
func (c *udpCarrier) NewSender() Sender {
	return newBatcher(newUDPTransmitter(c.out, c.family == Family6), c.out.limit())
}

// Receivers implements Carrier.
func (c *udpCarrier) Receivers() (rs []Receiver) {
	for _, r := range c.in {
		rs = append(rs, r)
	}
	return rs
}

// Refresh implements Carrier.
func (c *udpCarrier) Refresh(entries []Entry, mtu int) (soon bool) {
	c.out.look(time.Now())
	ps := c.out.paths.Load()
	return ps != nil && ps.refresh(entries, mtu)
}

// AddTo implements Carrier.
func (c *udpCarrier) AddTo(s *dataplane.Stats) {
	c.shield.mu.Lock()
	defer c.shield.mu.Unlock()
	c.shield.count(c)
	s.Drops[dataplane.DropQueueFull] += c.shield.full
	s.Drops[dropFlood] += c.shield.flood
	if c.out != nil {
		if ps := c.out.paths.Load(); ps != nil {
			s.NarrowPaths += ps.below.Load()
		}
	}
	for _, r := range c.in {
		s.Offload.RxBatches += r.batches.Load()
	}
}

// Close implements Carrier.
func (c *udpCarrier) Close() {
	c.LetGo()
	closeAll(c.in)
	c.shield.close()
	if c.out != nil {
		c.out.close()
	}
}

// Describe implements Describer.
func (c *udpCarrier) Describe() []any {
	return []any{"udp_segment", c.out.segments.Load(), "udp_gro", c.gro}
}

// openReceivers makes a receiver for each of n sockets that are bound to an address.
func openReceivers(cfg UDPConfig, at netip.AddrPort, n int) (rs []*udpReceiver, gro bool, err error) {
	sockets, gro, err := bindSockets(cfg, at, n)
	for i, s := range sockets {
		r, err := newUDPReceiver(s)
		if err != nil {
			closeAll(rs)
			closeAll(sockets[i+1:])
			return nil, false, err
		}
		rs = append(rs, r)
	}
	return rs, gro, err
}

func closeAll[T interface{ close() }](all []T) {
	for _, c := range all {
		c.close()
	}
}

// bindSockets binds n sockets to an address, all to one port. The kernel
// gives each flow, by its outer ports, to one of them.
func bindSockets(cfg UDPConfig, at netip.AddrPort, n int) (all []*socket, gro bool, err error) {
	for i := range n {
		s, on, err := bindSocket(cfg, at, i)
		if err == nil {
			all = append(all, s)
		}
		if err == nil && i == 0 && n > 1 {
			// The first is bound without it: nobody else's socket may share the port.
			err = s.setup(func(fd int) error { return setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		}
		if err == nil && at.Port() == 0 {
			at, err = s.addr()
		}
		if err != nil {
			closeAll(all)
			return nil, false, err
		}
		gro = on
	}
	return all, gro, nil
}

// bindSocket binds the i-th of the sockets, or takes the inherited one, with UDP_GRO if that is wanted and
// there.
func bindSocket(cfg UDPConfig, at netip.AddrPort, i int) (_ *socket, gro bool, err error) {
	if i < len(cfg.Inherited) {
		s, err := newSocket(cfg.Inherited[i])
		if err == nil {
			err = s.setup(func(fd int) error {
				gro = setGRO(fd, cfg.GRO)
				return errors.Join(udp.DetachFilter(fd), receiveTOS(fd, at.Addr())) // the process before may have ended in a flood
			})
		}
		return s, gro, err
	}
	var o udp.Option
	if i > 0 {
		o = udp.SharePort
	}
	fd, err := udp.Open(at, o)
	if err != nil {
		return nil, false, err
	}
	size, err := udp.GrowBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	if err == nil {
		err = receiveTOS(fd, at.Addr())
	}
	if err != nil {
		unix.Close(fd)
		return nil, false, fmt.Errorf("set up receiving socket: %w", err)
	}
	if size < receiveBuffer && i == 0 {
		cfg.Log.Warn("UDP receive buffer is small, expect loss under load", "bytes", size, "wanted", receiveBuffer,
			"fix", "sysctl -w net.core.rmem_max=16777216")
	}
	gro = setGRO(fd, cfg.GRO)
	s, err := newSocket(os.NewFile(uintptr(fd), "udp "+at.String()))
	return s, gro, err
}

// setGRO turns UDP_GRO on or off, and reports whether it is on.
func setGRO(fd int, on bool) bool {
	if !on {
		_ = setOption(fd, unix.SOL_UDP, unix.UDP_GRO, 0) // a kernel that does not have it has it off
		return false
	}
	return setOption(fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
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
