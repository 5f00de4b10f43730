package carrier

import (
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/dataplane/udp"
)

// A udpCarrier can receive while somebody else has its port. It then has sockets of another port, and
// datagrams to the port make a detour to these.

// anyPort is the address for sockets of any free port.
func (c *UDPConfig) anyPort() netip.AddrPort { return netip.AddrPortFrom(c.Local.Addr(), 0) }

// openUDPCarrierBeside does what openUDPCarrier does, while others have the port.
func openUDPCarrierBeside(cfg UDPConfig, workers int) (*udpCarrier, error) {
	c, err := openUDPCarrier(cfg, cfg.anyPort(), workers)
	if err != nil {
		return nil, err
	}
	if err := c.detourTo(c.in[0].now); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// quiet is the config of later sockets, which log nothing: everything about them has been logged.
func (c *udpCarrier) quiet() UDPConfig {
	cfg := c.cfg
	cfg.Log = slog.New(slog.DiscardHandler)
	return cfg
}

// detourTo sends datagrams that arrive at the port to the port of s.
func (c *udpCarrier) detourTo(s *socket) error {
	at, err := s.addr()
	if err == nil {
		c.detour, err = udp.OpenDetour(c.cfg.Local, at.Port())
	}
	return err
}

// Leave implements Mover.
func (c *udpCarrier) Leave() error {
	if c.detour != nil {
		return nil
	}
	if err := c.settle(); err != nil { // otherwise datagrams that wait in the old sockets would be lost
		return err
	}
	sockets, _, err := bindSockets(c.quiet(), c.cfg.anyPort(), len(c.in))
	if err != nil {
		return err
	}
	if err := c.detourTo(sockets[0]); err != nil {
		closeAll(sockets)
		return err
	}
	if err := c.move(sockets); err != nil {
		return err
	}
	return c.settle()
}

// movePatience bounds how long a receiver may take to read the rest at its socket.
const movePatience = time.Second

var errNotMoved = errors.New("the UDP port is still in use: its receivers are busy")

// Arrive implements Mover.
func (c *udpCarrier) Arrive() error {
	if c.detour == nil {
		return nil
	}
	sockets, _, err := bindSockets(c.quiet(), c.cfg.Local, len(c.in))
	if err != nil {
		return err
	}
	c.LetGo()
	return c.move(sockets)
}

// LetGo implements Mover.
func (c *udpCarrier) LetGo() {
	if c.detour != nil {
		_ = c.detour.Close() // its rules are gone even if closing the socket fails
		c.detour = nil
	}
}

// move makes each receiver go on at one of the sockets. If no other socket has a port, the first of them sends, too.
func (c *udpCarrier) move(sockets []*socket) error {
	err := c.out.follow(sockets[0])
	c.moved = nil
	for i, r := range c.in {
		c.moved = append(c.moved, r.moveTo(sockets[i]))
	}
	return err
}

// settle waits until the receivers have moved.
func (c *udpCarrier) settle() error {
	late := time.After(movePatience)
	for _, moved := range c.moved {
		select {
		case <-moved:
		case <-late:
			return errNotMoved
		}
	}
	return nil
}
