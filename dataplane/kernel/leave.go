package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// OthersRoutes returns the protocols, in words, of the routes on a device that neither overlayd nor
// the kernel made: somebody else uses the device, whatever its alias says.
func OthersRoutes(index int) (protocols []string, err error) {
	c, err := rtmsg.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	l, err := lookAt(c, index)
	if err != nil {
		return nil, err
	}
	for p := range l.others {
		protocols = append(protocols, protocolName(p))
	}
	slices.Sort(protocols)
	return protocols, nil
}

func protocolName(p uint8) string {
	switch p {
	case unix.RTPROT_BOOT: // that of whoever gives none, such as flanneld
		return "boot"
	case unix.RTPROT_STATIC:
		return "static"
	}
	return fmt.Sprint(p)
}

// settle is how long nobody else may change what there is to do before [Leave] does it.
const settle = time.Second

// Leave removes what is ours from a device that somebody else uses from now on: our routes and nexthop
// objects, the neighbours that no route needs then, and their FDB entries. Everything else stays, the
// device too. If it is a flanneld, it is given our routes to peers instead, in its own form: one that was started while
// we ran has lost its routes to us, and writes each only once. Whoever is just writing routes is waited for. Leave returns what
// it gave and removed, in words with counts, and does as much as possible even if it returns an error. A second call finds nothing.
func Leave(ctx context.Context, index int, flanneld bool) (given, removed []string, err error) {
	c, err := rtmsg.Open()
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	var before []op
	for {
		l, err := lookAt(c, index)
		if err != nil {
			return nil, nil, err
		}
		var ops []op
		if flanneld {
			ops = l.give()
		}
		ops = append(ops, l.unneeded()...)
		slices.SortFunc(ops, compareOps)
		if len(ops) == 0 || slices.Equal(ops, before) {
			return leave(ctx, c, ops)
		}
		if before = ops; !pace.Sleep(ctx, settle, nil) {
			return nil, nil, ctx.Err()
		}
	}
}

// shared is what there is on a device that others may use too.
type shared struct {
	index    int
	ours     map[routeKey]route
	others   map[uint8]bool     // protocols of the routes that are neither ours nor the kernel's
	gateways map[place]bool     // that those go through
	used     map[uint32]bool    // nexthop objects that those go through
	nexthops map[uint32]nexthop // all on the device
	neigh    map[place]encap.MAC
	fdb      map[fdbEntry]bool
}

// lookAt reads what there is on a device. The routes come last: whoever adds a peer adds its route last.
func lookAt(c *rtmsg.Conn, index int) (*shared, error) {
	p := &programmer{cfg: &Config{Learning: true}, batch: c, links: []int{index}, nexthops: true}
	s := &shared{index: index, nexthops: map[uint32]nexthop{}}
	for _, step := range []struct {
		what string
		read func() error
	}{
		{"neighbours", func() error { st := p.emptyState(); s.neigh = st.neigh; return p.readNeighbours(st) }},
		{"FDB entries", func() error { st := p.emptyState(); s.fdb = st.fdb; return p.readFDB(st) }},
		{"nexthops", func() error { return s.readNexthops(c) }},
		{"routes", func() error { return s.readRoutes(c) }},
	} {
		if _, err := rtnl.Retry(func() (any, error) { return nil, step.read() }); err != nil {
			return nil, fmt.Errorf("list %s of device %d: %w", step.what, index, err)
		}
	}
	return s, nil
}

func (s *shared) readNexthops(c *rtmsg.Conn) error {
	clear(s.nexthops)
	err := c.Dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func(body []byte) {
		if n, ok := parseNexthop(body); ok && n.link == s.index {
			s.nexthops[n.id] = n
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel before 5.3
	}
	return err
}

func (s *shared) readRoutes(c *rtmsg.Conn) error {
	s.ours, s.others, s.gateways, s.used = map[routeKey]route{}, map[uint8]bool{}, map[place]bool{}, map[uint32]bool{}
	for _, f := range families() {
		header := make([]byte, unix.SizeofRtMsg)
		header[0], header[4] = f, unix.RT_TABLE_MAIN
		err := c.Dump(unix.RTM_GETROUTE, header, rtmsg.AttrUint32(nil, unix.RTA_OIF, uint32(s.index)), s.addRoute)
		if err != nil && !errors.Is(err, unix.ENOENT) { // the main table does not exist before its first route
			return err
		}
	}
	return nil
}

func (s *shared) addRoute(body []byte) {
	k, r, ok := parseRoute(body)
	n, byNexthop := s.nexthops[r.nexthop]
	if !ok || r.link != s.index && !byNexthop {
		return
	}
	switch r.protocol {
	case rtnl.RouteProtocol:
		s.ours[k] = r
	case unix.RTPROT_KERNEL, unix.RTPROT_REDIRECT, unix.RTPROT_RA:
	default:
		s.others[r.protocol] = true
		s.gateways[place{s.index, r.gateway}] = true
		if byNexthop {
			s.used[r.nexthop], s.gateways[n.place()] = true, true
		}
	}
}

// give returns the replacements of our routes to peers by plain ones. Those are not ours from then on.
func (s *shared) give() (ops []op) {
	for k, r := range s.ours {
		gateway := r.gateway
		if n, ok := s.nexthops[r.nexthop]; ok {
			gateway = n.gateway
		}
		if gateway != k.dst.Addr() || k.metric != 0 {
			continue
		}
		plain := route{link: s.index, protocol: unix.RTPROT_BOOT, gateway: gateway, onlink: true}
		ops = append(ops, op{kind: replaceRoute, key: k, route: plain})
		delete(s.ours, k)
		s.gateways[place{s.index, gateway}] = true
	}
	return ops
}

// unneeded returns the deletions of what is ours and nobody else needs.
func (s *shared) unneeded() (ops []op) {
	for k, r := range s.ours {
		ops = append(ops, op{kind: delRoute, key: k, route: r})
	}
	for id, n := range s.nexthops {
		if n.protocol == rtnl.RouteProtocol && !s.used[id] {
			ops = append(ops, op{kind: delNexthop, at: n.place(), id: id})
		}
	}
	macs, needed := map[encap.MAC]bool{}, map[encap.MAC]bool{}
	for at, mac := range s.neigh {
		if s.gateways[at] {
			needed[mac] = true
			continue
		}
		macs[mac] = true
		ops = append(ops, op{kind: delNeigh, at: at, mac: mac})
	}
	maps.DeleteFunc(macs, func(mac encap.MAC, _ bool) bool { return needed[mac] })
	for e := range s.fdb {
		if macs[e.mac] {
			ops = append(ops, op{kind: delFDB, fdb: e})
		}
	}
	return ops
}

// leave does ops, and returns how many objects of which kind it gave and deleted.
func leave(ctx context.Context, c *rtmsg.Conn, ops []op) (given, removed []string, err error) {
	var p programmer
	var errs []error
	done := map[kind]int{}
	encode := func(i int, b []byte) []byte {
		if o := ops[i]; o.kind == replaceRoute {
			return routeMessage(b, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, o.key, o.route)
		}
		return p.encode(b, ops[i], 0)
	}
	err = c.Transact(ctx, len(ops), encode, func(i int, _ []byte, err error) {
		if err != nil && !isGone(err) {
			errs = append(errs, describe(ops[i], err))
			return
		}
		done[ops[i].kind]++
	})
	for _, k := range slices.Sorted(maps.Keys(done)) {
		if k == replaceRoute {
			given = append(given, fmt.Sprintf("routes (%d)", done[k]))
			continue
		}
		what := map[kind]string{delRoute: "routes", delNexthop: "nexthops", delNeigh: "neighbours", delFDB: "FDB entries"}[k]
		removed = append(removed, fmt.Sprintf("%s (%d)", what, done[k]))
	}
	return given, removed, errors.Join(append(errs, err)...)
}
