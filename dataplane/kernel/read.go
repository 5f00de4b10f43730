package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// read dumps what the kernel holds of the overlay. Filters in the requests
// (kernel 4.20) spare it the rest of a large host; they are applied again here.
func (t *tunnel) read() error {
	have := t.emptyState()
	t.nexthops = !t.cfg.noNexthops
	steps := []struct {
		what string
		dump func(*state) error
	}{
		{"neighbours", t.readNeighbours},
		{"FDB entries", t.readFDB},
		{"nexthops", t.readNexthops},
		{"routes", t.readRoutes},
	}
	for _, s := range steps {
		// Each try fills a state of its own: an interrupted dump leaves no trace.
		part, err := rtnl.Retry(func() (*state, error) {
			part := t.emptyState()
			return part, s.dump(part)
		})
		if err != nil {
			return fmt.Errorf("list %s of %s: %w", s.what, t.name, err)
		}
		have.take(part)
	}
	t.have = have
	return nil
}

func (t *tunnel) emptyState() *state {
	s := newState()
	s.index, s.networks = t.index, t.networks
	return s
}

// take moves in what another state holds of the kinds that s has nothing of.
func (s *state) take(part *state) {
	if len(part.neigh) > 0 {
		s.neigh = part.neigh
	}
	if len(part.fdb) > 0 {
		s.fdb = part.fdb
	}
	if len(part.nexthops)+len(part.spare) > 0 {
		s.nexthops, s.gateways, s.spare = part.nexthops, part.gateways, part.spare
	}
	if len(part.routes) > 0 {
		s.routes = part.routes
	}
}

func (t *tunnel) readNeighbours(s *state) error {
	filter := attrUint32(nil, unix.NDA_IFINDEX, uint32(t.index))
	return t.batch.dump(unix.RTM_GETNEIGH, ndmsg(t.family(), 0, 0, 0), filter, func(body []byte) {
		if n, ok := parseNeighbour(body); ok && n.index == t.index && n.family == t.family() {
			s.addNeighbour(n)
		}
	})
}

func (t *tunnel) readFDB(s *state) error {
	return t.batch.dump(unix.RTM_GETNEIGH, ndmsg(unix.AF_BRIDGE, t.index, 0, 0), nil, func(body []byte) {
		if n, ok := parseNeighbour(body); ok && n.index == t.index && n.family == unix.AF_BRIDGE {
			s.addFDB(n, t.cfg.Learning)
		}
	})
}

func (t *tunnel) readNexthops(s *state) error {
	if !t.nexthops {
		return nil
	}
	header := make([]byte, unix.SizeofNhmsg)
	header[0] = t.family()
	// Those of all devices: ours may have been moved to another, or left on one.
	err := t.batch.dump(unix.RTM_GETNEXTHOP, header, nil, func(body []byte) {
		if n, ok := parseNexthop(body); ok {
			s.addNexthop(n)
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.log.Info("kernel has no nexthop objects, using plain routes", "device", t.name)
		t.nexthops = false
		return nil
	}
	return err
}

// readRoutes dumps ours, and then what may be flannel's, which is never on
// another device.
func (t *tunnel) readRoutes(s *state) error {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[4], header[5] = t.family(), unix.RT_TABLE_MAIN, rtnl.RouteProtocol
	err := t.batch.dump(unix.RTM_GETROUTE, header, nil, s.addRoute)
	if err == nil {
		header[5] = unix.RTPROT_BOOT
		filter := attrUint32(nil, unix.RTA_OIF, uint32(t.index))
		err = t.batch.dump(unix.RTM_GETROUTE, header, filter, s.addRoute)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil // there is no main table before its first route
	}
	return err
}

func (t *tunnel) family() uint8 { return family(t.cfg.Local) }
