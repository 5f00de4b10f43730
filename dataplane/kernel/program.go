package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// programmer programs what is on the devices of all families and leads to them. A subnet may
// move from one device to the other: therefore one programmer serves both. Its methods are
// called by one goroutine at a time.
type programmer struct {
	log      *slog.Logger
	report   *dataplane.Reporter
	cfg      *Config
	batch    *rtmsg.Conn
	tunnels  []*tunnel
	networks []netip.Prefix  // the overlay networks
	links    []int           // indices of the devices that are there
	nexthops bool            // the kernel has nexthop objects (5.3), as far as is known
	have     *state          // nil if it must be read first
	left     *desired        // what the last sync left programmed; nil if that failed
	failed   map[object]bool // what the kernel refused the last time

	asked   bool               // this sync is a Sync, not a repair
	mends   []mend             // repairs that this sync has tried
	repairs []dataplane.Change // those that it has made
	held    time.Duration      // until the next repair of what somebody keeps undoing; 0: of nothing
}

// sync makes w true, and returns the targets that follow from w. Errors of single peers are
// returned as refusals, others as err. A sync that only repairs (asked is false) leaves direct
// routes that replace its own: hostroute has put them there, and Sync is about to be called.
func (p *programmer) sync(ctx context.Context, w dataplane.Wanted, asked bool) (*desired, refusals, error) {
	p.asked, p.held = asked, 0
	if !slices.Equal(w.Networks, p.networks) {
		p.networks, p.have, p.left = slices.Clone(w.Networks), nil, nil // other routes are ours now
	}
	ends, errDevice := p.ensureDevices(w, asked) // a device with a wrong MTU, say, is better than none
	if len(ends) == 0 {
		return nil, nil, errDevice
	}
	if errors.Is(errDevice, ErrHeldDown) {
		p.have, p.left = nil, nil // going down, it loses what was programmed
		return nil, nil, errDevice
	}
	want, refused, err := p.reach(ctx, w, ends)
	lost, errSettle := p.settleDevices(w, asked)
	if lost {
		p.have = nil
		return p.sync(ctx, w, asked)
	}
	if p.tookAddrs() { // what these stood in the way of can be programmed now
		p.have, p.left = nil, nil // nobody else has changed what the kernel took along
		want, refused, err = p.reach(ctx, w, ends)
	}
	return want, refused, errors.Join(errDevice, err, errSettle)
}

// reach programs the targets that follow from w, which it returns, with those that the kernel refuses.
func (p *programmer) reach(ctx context.Context, w dataplane.Wanted, ends []end) (*desired, refusals, error) {
	want, refused := compile(w, ends...)
	for i := range want.targets {
		want.targets[i].yields = !p.asked
	}
	return want, refused, p.programAll(ctx, want, refused)
}

// programAll programs want, and adds the targets that the kernel refuses to refused.
func (p *programmer) programAll(ctx context.Context, want *desired, refused refusals) error {
	p.mends = nil
	errs, err := p.program(ctx, want)
	if p.isNews(errs) || errors.Is(err, rtmsg.ErrOverrun) {
		// Perhaps the kernel is not as remembered: somebody changed our objects.
		p.have = nil
		errs, err = p.program(ctx, want)
	}
	p.mended(errs)
	if err != nil {
		p.have, p.left = nil, nil
		return err
	}
	p.remember(errs)
	p.left = want
	other, err := p.withdraw(ctx, want, errs, refused)
	if err != nil || len(other) > 0 {
		p.have, p.left = nil, nil
	}
	return errors.Join(append(other, err)...)
}

// ensureDevices makes every device as wanted. It returns this host's ends of the devices that
// exist, and forgets the remembered state if what is on them may have changed.
func (p *programmer) ensureDevices(w dataplane.Wanted, asked bool) (ends []end, err error) {
	var errs []error
	var links []int
	for _, t := range p.tunnels {
		l, err := t.ensureDevice()
		if err == nil {
			errs = append(errs, t.adjust(l, w))
			ends, links = append(ends, t.end()), append(links, t.index)
		}
		errs = append(errs, err)
		if t.emptied {
			p.have, t.emptied = nil, false
		}
		p.collect(t, asked)
	}
	if !slices.Equal(links, p.links) {
		p.links, p.have = links, nil
	}
	return ends, errors.Join(errs...)
}

// settleDevices removes unwanted addresses from the devices, and what they displace. It reports
// whether what was programmed is gone.
func (p *programmer) settleDevices(w dataplane.Wanted, asked bool) (lost bool, err error) {
	var errs []error
	for _, t := range p.tunnels {
		if slices.Contains(p.links, t.index) {
			l, err := t.settle(w)
			lost, errs = lost || l, append(errs, err)
			p.collect(t, asked)
		}
	}
	return lost, errors.Join(errs...)
}

// tookAddrs reports whether settleDevices has changed addresses, with the last of which the kernel forgets what was programmed.
func (p *programmer) tookAddrs() (took bool) {
	for _, t := range p.tunnels {
		took, t.emptied = took || t.emptied, false
	}
	return took
}

// collect takes over the changes of a device. Those that Sync asks for are repairs only if
// the device was gone.
func (p *programmer) collect(t *tunnel, asked bool) {
	for _, c := range t.changes {
		if !asked || c.Op == dataplane.OpAdd {
			p.repairs = append(p.repairs, c)
		}
	}
	t.changes = nil
}

// program plans and applies, and reads the kernel's state first if it is not known. It returns
// the kernel's refusals by object.
func (p *programmer) program(ctx context.Context, want *desired) (map[object]error, error) {
	unknown := p.have == nil
	if unknown {
		if err := p.read(); err != nil {
			return nil, err
		}
	}
	errs := map[object]error{}
	ops := p.withoutHeld(plan(p.have, want, p.nexthops))
	if unknown && p.left != nil {
		p.mends = append(p.mends, p.repairing(ops)...)
	}
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].kind.stage() == ops[0].kind.stage() {
			n++
		}
		if err := p.apply(ctx, ops[:n], want, errs); err != nil {
			return nil, fmt.Errorf("program overlay: %w", err)
		}
		ops = ops[n:]
	}
	return errs, nil
}

// apply does the operations of one stage.
func (p *programmer) apply(ctx context.Context, ops []op, want *desired, errs map[object]error) error {
	misled, err := p.try(ctx, ops, want, errs)
	if err != nil || len(misled) == 0 {
		return err
	}
	if err := p.pin(ctx, misled, unix.RTM_NEWROUTE); err != nil {
		return err
	}
	_, err = p.try(ctx, misled, want, errs)
	return errors.Join(err, p.pin(context.WithoutCancel(ctx), misled, unix.RTM_DELROUTE)) // so that none stays when the daemon ends
}

// try does operations. It returns those that may be refused only because a route of another
// device leads to their gateway: IPv6 then rejects the route even with the onlink flag.
func (p *programmer) try(ctx context.Context, ops []op, want *desired, errs map[object]error) (misled []op, err error) {
	ids := make([]uint32, len(ops)) // of the nexthop that each route goes through
	encode := func(i int, b []byte) []byte {
		o := ops[i]
		if o.kind == addRoute || o.kind == replaceRoute {
			ids[i] = p.have.nexthops[o.at]
		}
		if !o.kind.isDelete() && !p.may(o, want) {
			return b
		}
		return p.encode(b, o, ids[i])
	}
	done := func(i int, reply []byte, err error) {
		o, id := ops[i], ids[i]
		if o.kind == addNexthop && err == nil {
			n, ok := parseNexthop(reply)
			if id = n.id; !ok {
				err = errors.New("the kernel did not tell the id")
			}
		}
		if err == nil || o.kind.isDelete() && isGone(err) {
			p.have.apply(o, id)
			delete(errs, o.object())
			return
		}
		errs[o.object()] = describe(o, err)
		if errors.Is(err, unix.EINVAL) && o.at.addr.Is6() {
			misled = append(misled, o)
		}
	}
	err = p.batch.Transact(ctx, len(ops), encode, done)
	return misled, err
}

// pin adds or removes host routes to the gateways by their devices. The routes that were there
// before (direct routes, or routes by the device of the other family) stay until they are
// replaced. Errors are ignored: such a route may already exist, or be gone.
func (p *programmer) pin(ctx context.Context, ops []op, typ uint16) error {
	flags := uint16(0)
	if typ == unix.RTM_NEWROUTE {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	encode := func(i int, b []byte) []byte {
		at := ops[i].at
		key := routeKey{dst: netip.PrefixFrom(at.addr, at.addr.BitLen())}
		return routeMessage(b, typ, flags, key, route{link: at.link, protocol: rtnl.RouteProtocol})
	}
	return p.batch.Transact(ctx, len(ops), encode, func(int, []byte, error) {})
}

// may reports whether what o depends on is in place. If not, the error of that is reported, and
// o is not tried.
func (p *programmer) may(o op, want *desired) bool {
	switch o.kind {
	case moveNeigh:
		return p.have.fdb[want.targets[want.byBase[o.at.addr]].fdb()]
	case addRoute, replaceRoute:
		return p.have.ready(want.targets[want.byBase[o.key.dst.Addr()]], p.nexthops)
	}
	return true
}

// encode appends the message for o; id is the nexthop of a route to add.
func (p *programmer) encode(b []byte, o op, id uint32) []byte {
	const replace, create = unix.NLM_F_CREATE | unix.NLM_F_REPLACE, unix.NLM_F_CREATE | unix.NLM_F_EXCL
	switch o.kind {
	case addNeigh, moveNeigh:
		return neighMessage(b, unix.RTM_NEWNEIGH, replace, o.at, o.mac)
	case delNeigh:
		return neighMessage(b, unix.RTM_DELNEIGH, 0, o.at, o.mac)
	case addFDB:
		return fdbMessage(b, unix.RTM_NEWNEIGH, replace, o.fdb)
	case delFDB:
		return fdbMessage(b, unix.RTM_DELNEIGH, 0, o.fdb)
	case addNexthop:
		return newNexthopMessage(b, o.at)
	case delNexthop:
		return delNexthopMessage(b, o.id)
	case addRoute: // exclusive: somebody else's route to the same subnet is never replaced
		return routeMessage(b, unix.RTM_NEWROUTE, create, o.key, ourRoute(o.at, id))
	case replaceRoute:
		return routeMessage(b, unix.RTM_NEWROUTE, replace, o.key, ourRoute(o.at, id))
	}
	return routeMessage(b, unix.RTM_DELROUTE, 0, o.key, o.route)
}

// isGone reports whether a deletion failed because there was nothing to delete.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

func describe(o op, err error) error {
	switch o.kind {
	case addRoute, replaceRoute, delRoute:
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%w (see: ip route show %s)", rtnl.ErrRouteTaken, o.key.dst)
		}
		return fmt.Errorf("%s %s: %w", o.kind, o.key.dst, err)
	case addFDB, delFDB:
		return fmt.Errorf("%s %s dst %s: %w", o.kind, o.fdb.mac, o.fdb.dst, err)
	case delNexthop:
		return fmt.Errorf("%s id %d: %w", o.kind, o.id, err)
	}
	return fmt.Errorf("%s %s: %w", o.kind, o.at.addr, err)
}

// isNews reports whether anything was refused that was not refused the last time. Only then the
// kernel's state is read again: doing so for every change while one peer stays refused would be
// too expensive.
func (p *programmer) isNews(errs map[object]error) bool {
	for o := range errs {
		if !p.failed[o] {
			return true
		}
	}
	return false
}

func (p *programmer) remember(errs map[object]error) {
	p.failed = make(map[object]bool, len(errs))
	for o := range errs {
		p.failed[o] = true
	}
}

// withdraw adds the errors of each target to refused, and removes what was programmed for
// targets that could not be completed. It returns the errors that do not concern a peer.
func (p *programmer) withdraw(ctx context.Context, want *desired, errs map[object]error, refused refusals) ([]error, error) {
	if len(errs) == 0 {
		return nil, nil
	}
	good := newDesired(len(want.targets))
	blamed := map[object]bool{}
	for _, g := range want.targets {
		if p.have.complete(g, p.nexthops) {
			good.add(g)
			continue
		}
		objects := []object{{class: 'n', at: g.at()}, {class: 'f', fdb: g.fdb()},
			{class: 'x', at: g.at()}, {class: 'r', key: routeKey{dst: g.dst}}}
		for _, o := range objects {
			refused.add(g.peer, errs[o])
			blamed[o] = true
		}
	}
	var other []error
	for o, err := range errs {
		if !blamed[o] {
			other = append(other, err)
		}
	}
	if len(good.targets) == len(want.targets) {
		return other, nil
	}
	p.left = good
	errs, err := p.program(ctx, good)
	for _, err := range errs {
		other = append(other, err)
	}
	return other, err
}
