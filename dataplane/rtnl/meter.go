package rtnl

import (
	"sync"

	"github.com/vishvananda/netlink"

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
	l, err := c.LinkByIndex(index)
	if err != nil {
		return err
	}
	m.open, m.index, m.at = true, index, linkStats(l)
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
	l, err := c.LinkByIndex(index)
	if err != nil {
		return m.total
	}
	now := linkStats(l)
	if l.Attrs().Index != m.index {
		m.index, m.at = l.Attrs().Index, dataplane.Stats{} // a new device counts from zero
	}
	m.total.TxPackets += now.TxPackets - m.at.TxPackets
	m.total.TxBytes += now.TxBytes - m.at.TxBytes
	m.total.RxPackets += now.RxPackets - m.at.RxPackets
	m.total.RxBytes += now.RxBytes - m.at.RxBytes
	m.total.Drops[dataplane.DropDevice] += now.Drops[dataplane.DropDevice] - m.at.Drops[dataplane.DropDevice]
	m.at = now
	return m.total
}

// linkStats reads struct rtnl_link_stats64. The vxlan driver counts inner
// packets, by the length of their IP packet.
func linkStats(l netlink.Link) dataplane.Stats {
	var s dataplane.Stats
	if n := l.Attrs().Statistics; n != nil {
		s.TxPackets, s.TxBytes, s.RxPackets, s.RxBytes = n.TxPackets, n.TxBytes, n.RxPackets, n.RxBytes
		s.Drops[dataplane.DropDevice] = n.TxDropped + n.TxErrors + n.RxDropped + n.RxErrors
	}
	return s
}
