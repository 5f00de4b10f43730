package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// read dumps what the kernel holds of the overlay. Filters in the requests
// (kernel 4.20) spare it the rest of a large host; they are applied again here.
func (v *overlay) read() error {
	have := v.emptyState()
	v.nexthops = !v.cfg.noNexthops
	steps := []struct {
		what string
		dump func(*state) error
	}{
		{"neighbours", v.readNeighbours},
		{"FDB entries", v.readFDB},
		{"nexthops", v.readNexthops},
		{"routes", v.readRoutes},
	}
	for _, s := range steps {
		// Each try fills a state of its own: an interrupted dump leaves no trace.
		part, err := rtnl.Retry(func() (*state, error) {
			part := v.emptyState()
			return part, s.dump(part)
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", s.what, err)
		}
		have.take(part)
	}
	v.have = have
	return nil
}

func (v *overlay) emptyState() *state {
	s := newState()
	s.links, s.networks = v.links, v.networks
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

// families are those of overlay addresses. Both are read, whatever the overlay has
// now: an earlier one may have had both.
func families() [2]uint8 { return [2]uint8{unix.AF_INET, unix.AF_INET6} }

func (v *overlay) readNeighbours(s *state) error {
	for _, link := range v.links {
		filter := attrUint32(nil, unix.NDA_IFINDEX, uint32(link))
		for _, f := range families() {
			err := v.batch.dump(unix.RTM_GETNEIGH, ndmsg(f, 0, 0, 0), filter, func(body []byte) {
				if n, ok := parseNeighbour(body); ok && n.index == link && n.family == f {
					s.addNeighbour(n)
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *overlay) readFDB(s *state) error {
	for _, link := range v.links {
		err := v.batch.dump(unix.RTM_GETNEIGH, ndmsg(unix.AF_BRIDGE, link, 0, 0), nil, func(body []byte) {
			if n, ok := parseNeighbour(body); ok && n.index == link && n.family == unix.AF_BRIDGE {
				s.addFDB(n, v.cfg.Learning)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *overlay) readNexthops(s *state) error {
	if !v.nexthops {
		return nil
	}
	// Those of all devices and families: ours may have been moved to another, or left on one.
	err := v.batch.dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func(body []byte) {
		if n, ok := parseNexthop(body); ok {
			s.addNexthop(n)
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		v.log.Info("kernel has no nexthop objects, using plain routes")
		v.nexthops = false
		return nil
	}
	return err
}

// readRoutes dumps ours, and then what may be flannel's, which is never on
// another device.
func (v *overlay) readRoutes(s *state) error {
	for _, f := range families() {
		header := make([]byte, unix.SizeofRtMsg)
		header[0], header[4], header[5] = f, unix.RT_TABLE_MAIN, rtnl.RouteProtocol
		if err := v.dumpRoutes(s, header, nil); err != nil {
			return err
		}
		header[5] = unix.RTPROT_BOOT
		for _, link := range v.links {
			if err := v.dumpRoutes(s, header, attrUint32(nil, unix.RTA_OIF, uint32(link))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *overlay) dumpRoutes(s *state, header, filter []byte) error {
	err := v.batch.dump(unix.RTM_GETROUTE, header, filter, s.addRoute)
	if errors.Is(err, unix.ENOENT) {
		return nil // there is no main table before its first route
	}
	return err
}
