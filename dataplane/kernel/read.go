package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// read dumps the kernel's state of the overlay. Filters in the requests (kernel 4.20) leave out
// the rest of a large host; they are applied again here.
func (p *programmer) read() error {
	have := p.emptyState()
	steps := []struct {
		what string
		dump func(*state) error
	}{
		{"neighbours", p.readNeighbours},
		{"FDB entries", p.readFDB},
		{"nexthops", p.readNexthops},
		{"routes", p.readRoutes},
	}
	for _, s := range steps {
		// Each try fills a new state: the rest of an interrupted dump is dropped.
		part, err := rtnl.Retry(func() (*state, error) {
			part := p.emptyState()
			return part, s.dump(part)
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", s.what, err)
		}
		have.take(part)
	}
	p.have = have
	return nil
}

func (p *programmer) emptyState() *state {
	s := newState()
	s.links, s.networks = p.links, p.networks
	return s
}

// take moves into s the objects of part, which has only kinds that s lacks.
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

// families are those of overlay addresses. Both are always read: an earlier overlay may have
// had both.
func families() [2]uint8 { return [2]uint8{unix.AF_INET, unix.AF_INET6} }

func (p *programmer) readNeighbours(s *state) error {
	for _, link := range p.links {
		filter := rtmsg.AttrUint32(nil, unix.NDA_IFINDEX, uint32(link))
		for _, f := range families() {
			err := p.batch.Dump(unix.RTM_GETNEIGH, ndmsg(f, 0, 0, 0), filter, func(body []byte) {
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

func (p *programmer) readFDB(s *state) error {
	for _, link := range p.links {
		err := p.batch.Dump(unix.RTM_GETNEIGH, ndmsg(unix.AF_BRIDGE, link, 0, 0), nil, func(body []byte) {
			if n, ok := parseNeighbour(body); ok && n.index == link && n.family == unix.AF_BRIDGE {
				s.addFDB(n, p.cfg.Learning)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *programmer) readNexthops(s *state) error {
	if !p.nexthops {
		return nil
	}
	var err error = unix.EOPNOTSUPP
	if !p.cfg.noNexthops {
		// Of all devices and families: ours may be on another device.
		err = p.batch.Dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func(body []byte) {
			if n, ok := parseNexthop(body); ok {
				s.addNexthop(n)
			}
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		p.log.Info("kernel has no nexthop objects, using plain routes")
		p.nexthops = false
		return nil
	}
	return err
}

// readRoutes dumps our routes, and then those that may be flannel's, which are on our devices.
func (p *programmer) readRoutes(s *state) error {
	for _, f := range families() {
		header := make([]byte, unix.SizeofRtMsg)
		header[0], header[4], header[5] = f, unix.RT_TABLE_MAIN, rtnl.RouteProtocol
		if err := p.dumpRoutes(s, header, nil); err != nil {
			return err
		}
		header[5] = unix.RTPROT_BOOT
		for _, link := range p.links {
			if err := p.dumpRoutes(s, header, rtmsg.AttrUint32(nil, unix.RTA_OIF, uint32(link))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *programmer) dumpRoutes(s *state, header, filter []byte) error {
	err := p.batch.Dump(unix.RTM_GETROUTE, header, filter, s.addRoute)
	if errors.Is(err, unix.ENOENT) {
		return nil // the main table does not exist before its first route
	}
	return err
}
