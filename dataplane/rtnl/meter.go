package rtnl

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// Meter counts what passed since Start on a device that may have been there
// before and may be made again meanwhile. Its methods may be called from several goroutines, after Start.
type Meter struct {
	mu    sync.Mutex
	open  bool
	index int
	at    dataplane.Stats // the device's counters when last read
	total dataplane.Stats
}

// Start reads the counters that the device has.
func (m *Meter) Start(c *Conn, index int) error {
	now, err := c.linkStats(index)
	if err != nil {
		return err
	}
	m.open, m.index, m.at = true, index, now
	return nil
}

// Stop reads the counters for the last time: Read returns these from now on.
func (m *Meter) Stop(c *Conn, index int) {
	m.Read(c, index)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
}

// Read adds what passed since the last time. A device that is gone adds nothing.
func (m *Meter) Read(c *Conn, index int) dataplane.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return m.total
	}
	now, err := c.linkStats(index)
	if err != nil {
		return m.total
	}
	if index != m.index {
		m.index, m.at = index, dataplane.Stats{} // a new device counts from zero
	}
	m.total.TxPackets += now.TxPackets - m.at.TxPackets
	m.total.TxBytes += now.TxBytes - m.at.TxBytes
	m.total.RxPackets += now.RxPackets - m.at.RxPackets
	m.total.RxBytes += now.RxBytes - m.at.RxBytes
	for why := range now.Drops {
		m.total.Drops[why] += now.Drops[why] - m.at.Drops[why]
	}
	m.at = now
	return m.total
}

// The counters that linkStats reads, by their places in struct rtnl_link_stats64 (linux/if_link.h).
const (
	rxPackets = iota
	txPackets
	rxBytes
	txBytes
	rxErrors
	txErrors
	rxDropped
	txDropped

	rxFrameErrors      = 13
	rxOtherhostDropped = 24 // since Linux 5.19
)

// linkStats reads the counters of a device. The vxlan driver counts inner packets, by the length of their IP packet, and as errors of frames those that RFC 6040 has
// dropped. Those for another MAC the kernel drops behind it.
func (c *Conn) linkStats(index int) (s dataplane.Stats, err error) {
	counters, err := c.linkCounters(index)
	if err != nil {
		return s, fmt.Errorf("read counters of link %d: %w", index, err)
	}
	of := func(place int) uint64 {
		if len(counters) < 8*(place+1) {
			return 0
		}
		return binary.NativeEndian.Uint64(counters[8*place:])
	}
	s.TxPackets, s.TxBytes, s.RxPackets, s.RxBytes = of(txPackets), of(txBytes), of(rxPackets), of(rxBytes)
	s.Drops[dataplane.DropCongestion] = min(of(rxFrameErrors), of(rxErrors)) // the one is a part of the other, but may be read later
	s.Drops[dataplane.DropDevice] = of(txDropped) + of(txErrors) + of(rxDropped) + of(rxErrors) - s.Drops[dataplane.DropCongestion]
	s.Drops[dataplane.DropBadMAC] = of(rxOtherhostDropped)
	return s, nil
}

// linkCounters returns struct rtnl_link_stats64 of a device, which is longer in newer kernels. The library does not know all of it.
func (c *Conn) linkCounters(index int) ([]byte, error) {
	r := c.request(unix.RTM_GETLINK, 0)
	about := nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = int32(index)
	r.AddData(about)
	msgs, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[min(len(m), unix.SizeofIfInfomsg):])
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_STATS64 {
				return a.Value, nil
			}
		}
	}
	return nil, ErrNotFound
}
