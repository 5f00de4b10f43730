package main

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// caller opens UDP connections at a steady pace, each from a port of its own and with one
// datagram, and keeps account of who the other end takes them for.
type caller struct {
	stop             chan struct{}
	sender, receiver sync.WaitGroup
	server           net.PacketConn
	sent             int
	received         atomic.Uint64
	sources          map[netip.Addr]int // of what is received; only for the receiver while it runs
}

// startCaller calls addr in another namespace every period.
func startCaller(from, to *netnstest.NS, addr netip.Addr, period time.Duration) (*caller, error) {
	c := &caller{stop: make(chan struct{}), sources: map[netip.Addr]int{}}
	if err := to.Do(func() (err error) {
		c.server, err = net.ListenPacket("udp", net.JoinHostPort(addr.String(), "0"))
		return err
	}); err != nil {
		return nil, err
	}
	holdMuch(c.server)
	c.receiver.Go(c.receive)
	c.sender.Go(func() { from.Do(func() error { return c.send(period) }) })
	return c, nil
}

func (c *caller) send(period time.Duration) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return nil
		case <-tick.C:
		}
		conn, err := net.Dial("udp", c.server.LocalAddr().String())
		if err != nil {
			return err
		}
		conn.Write([]byte("?")) // a refusal shows as loss
		conn.Close()
		c.sent++
	}
}

func (c *caller) receive() {
	buf := make([]byte, 64)
	for {
		_, from, err := c.server.ReadFrom(buf)
		if err != nil {
			return
		}
		c.sources[netip.MustParseAddrPort(from.String()).Addr().Unmap()]++
		c.received.Add(1)
	}
}

// finish stops calling, gives the last datagrams time to arrive and returns how many were
// sent, and how many came from where.
func (c *caller) finish() (sent int, sources map[netip.Addr]int) {
	close(c.stop)
	c.sender.Wait()
	netnstest.AwaitArrival(uint64(c.sent), c.received.Load)
	c.server.Close()
	c.receiver.Wait()
	return c.sent, c.sources
}
