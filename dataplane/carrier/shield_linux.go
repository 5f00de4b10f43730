package carrier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// dropFlood is the reason of datagrams that a filter drops.
const dropFlood = dataplane.DropFlood

// shield is the filter of the sockets of a udpCarrier. It also tells what the filter dropped from what a full queue dropped: the
// kernel has one count for both.
type shield struct {
	mu      sync.Mutex
	filter  *Filter // as last wanted
	wrote   bool    // the sockets may have a filter
	buffers *os.File
	last    struct{ drops, full uint64 } // when they were read last
	full    uint64                       // datagrams that found a full queue
	flood   uint64                       // datagrams that the filter dropped
}

// openShield opens the count that tells the two apart: how many datagrams in the whole network namespace found a full queue.
func openShield(family int) *shield {
	path := "/proc/thread-self/net/snmp"
	if family == Family6 {
		path = "/proc/thread-self/net/snmp6"
	}
	f, _ := os.Open(path) // without it all drops while there is a filter count as the filter's
	return &shield{buffers: f}
}

func (s *shield) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buffers != nil {
		s.buffers.Close()
	}
}

// SetFilter implements Shield.
func (c *udpCarrier) SetFilter(f *Filter) error {
	s := c.shield
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == nil && !s.wrote {
		return nil
	}
	s.count(c)
	if !s.wrote {
		s.last.full = s.readFull() // count from now on
	}
	again := (f == nil) != (s.filter == nil) || f != nil && !f.Equal(*s.filter)
	s.filter, s.wrote = f, true
	var errs []error
	for _, r := range c.in { // the others, too, if one fails
		errs = append(errs, r.filter(again, func(fd int) error { return setFilter(fd, f, c.family == Family6) }))
	}
	if err := errors.Join(errs...); err != nil { // the next call tries again
		return fmt.Errorf("filter UDP %s: %w", c.cfg.Local, err)
	}
	s.wrote = f != nil
	return nil
}

// setFilter gives a socket a filter; nil: takes it away.
func setFilter(fd int, f *Filter, v6 bool) error {
	if f == nil {
		return udp.DetachFilter(fd)
	}
	err := f.Attach(fd, v6)
	if err != nil && f.Sources != nil { // too long for net.core.optmem_max
		err = Filter{VNIs: f.VNIs}.Attach(fd, v6)
	}
	return err
}

// Filtered implements Shield.
func (c *udpCarrier) Filtered() uint64 {
	c.shield.mu.Lock()
	defer c.shield.mu.Unlock()
	c.shield.count(c)
	return c.shield.flood
}

// count divides the kernel's drops since the last time between full queue and filter. If other sockets of this host lose datagrams at the
// same time, that many drops may count for the full queue instead of the filter.
func (s *shield) count(c *udpCarrier) {
	drops := c.dropped()
	n := uint64(uint32(drops) - uint32(s.last.drops)) // the kernel counts in 32 bits
	s.last.drops = drops
	if !s.wrote {
		s.full += n
		return
	}
	full := s.readFull()
	here := min(n, full-s.last.full)
	s.last.full = full
	s.full += here
	s.flood += n - here
}

// dropped returns how many datagrams the kernel has dropped at the sockets.
func (c *udpCarrier) dropped() (n uint64) {
	for _, r := range c.in {
		n += r.drops()
	}
	return n
}

// readFull reads RcvbufErrors of /proc/net/snmp, or Udp6RcvbufErrors of /proc/net/snmp6.
func (s *shield) readFull() uint64 {
	if s.buffers == nil {
		return 0
	}
	all := make([]byte, 16<<10)
	n, _ := s.buffers.ReadAt(all, 0)
	if n == 0 {
		return s.last.full
	}
	return rcvbufErrors(all[:n])
}

// rcvbufErrors finds the count in the text of either file.
//
//	Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors ...
//	Udp: 5 0 0 5 0 ...
//	Udp6RcvbufErrors                	0
func rcvbufErrors(text []byte) uint64 {
	var names [][]byte
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 2 && string(fields[0]) == "Udp6RcvbufErrors":
			n, _ := strconv.ParseUint(string(fields[1]), 10, 64)
			return n
		case len(fields) == 0 || string(fields[0]) != "Udp:":
		case names == nil:
			names = fields
		default:
			for i := range min(len(names), len(fields)) {
				if string(names[i]) == "RcvbufErrors" {
					n, _ := strconv.ParseUint(string(fields[i]), 10, 64)
					return n
				}
			}
		}
	}
	return 0
}
