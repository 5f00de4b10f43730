package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// overlay is what is on the devices of all families and leads to them. A subnet may
// move from one device to the other, so that they are programmed as one. Its
// methods are called by one goroutine at a time.
type overlay struct {
	log      *slog.Logger
	cfg      *Config
	batch    *conn
	tunnels  []*tunnel
	networks []netip.Prefix  // the overlay networks
	links    []int           // indices of the devices that are there
	nexthops bool            // the kernel has nexthop objects (5.3)
	have     *state          // nil where it must be read first
	left     *desired        // what the last sync left programmed; nil where that failed
	mended   bool            // the kernel was found other than it was left
	failed   map[object]bool // what the kernel refused the last time
}

// sync makes w true. Errors of single peers come as refusals, what concerns all of
// them as err. Where it was not asked for and only repairs, it leaves direct routes
// that are in the place of its own: what is wanted is about to change.
func (v *overlay) sync(ctx context.Context, w dataplane.Wanted, asked bool) (refusals, error) {
	if !slices.Equal(w.Networks, v.networks) {
		v.networks, v.have, v.left = slices.Clone(w.Networks), nil, nil // other routes are ours now
	}
	ends, errDevice := v.ensureDevices(w) // with a wrong MTU, say, peers are better reached than not
	if len(ends) == 0 {
		return nil, errDevice
	}
	want, refused := compile(w, ends...)
	for i := range want.targets {
		want.targets[i].yields = !asked
	}
	err := v.reach(ctx, want, refused)
	return refused, errors.Join(errDevice, err, v.settleDevices(w))
}

// reach programs what is wanted, and adds what the kernel refuses of it to refused.
func (v *overlay) reach(ctx context.Context, want *desired, refused refusals) error {
	errs, err := v.program(ctx, want)
	if v.isNews(errs) || errors.Is(err, errOverrun) {
		// Perhaps the kernel is not as remembered: somebody changed our objects.
		v.have = nil
		errs, err = v.program(ctx, want)
	}
	if err != nil {
		v.have, v.left = nil, nil
		return err
	}
	v.remember(errs)
	v.left = want
	other, err := v.withdraw(ctx, want, errs, refused)
	if err != nil || len(other) > 0 {
		v.have, v.left = nil, nil
	}
	return errors.Join(append(other, err)...)
}

// ensureDevices makes every device be there and as wanted. It returns this host's
// ends of those that are, and forgets what is remembered where they may have
// changed.
func (v *overlay) ensureDevices(w dataplane.Wanted) (ends []end, err error) {
	var errs []error
	var links []int
	for _, t := range v.tunnels {
		l, err := t.ensureDevice()
		if err == nil {
			errs = append(errs, t.adjust(l, w))
			ends, links = append(ends, t.end()), append(links, t.index)
		}
		errs = append(errs, err)
		if t.emptied {
			v.have, t.emptied = nil, false
		}
		v.mended = v.mended || t.mended
		t.mended = false
	}
	if !slices.Equal(links, v.links) {
		v.links, v.have = links, nil
	}
	return ends, errors.Join(errs...)
}

// settleDevices ends what ensureDevices began.
func (v *overlay) settleDevices(w dataplane.Wanted) error {
	var errs []error
	for _, t := range v.tunnels {
		if slices.Contains(v.links, t.index) {
			errs = append(errs, t.settle(w))
			v.mended = v.mended || t.mended
			t.mended = false
		}
	}
	return errors.Join(errs...)
}

// program plans and applies, reading the kernel's state first where it is not known.
// It returns what the kernel refused, by object.
func (v *overlay) program(ctx context.Context, want *desired) (map[object]error, error) {
	if v.have == nil {
		if err := v.read(); err != nil {
			return nil, err
		}
		v.mended = v.mended || v.left == nil || len(plan(v.have, v.left, v.nexthops)) > 0
	}
	errs := map[object]error{}
	ops := plan(v.have, want, v.nexthops)
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].kind.stage() == ops[0].kind.stage() {
			n++
		}
		if err := v.apply(ctx, ops[:n], want, errs); err != nil {
			return nil, fmt.Errorf("program overlay: %w", err)
		}
		ops = ops[n:]
	}
	return errs, nil
}

// apply does the operations of one stage.
func (v *overlay) apply(ctx context.Context, ops []op, want *desired, errs map[object]error) error {
	misled, err := v.try(ctx, ops, want, errs)
	if err != nil || len(misled) == 0 {
		return err
	}
	if err := v.pin(ctx, misled, unix.RTM_NEWROUTE); err != nil {
		return err
	}
	_, err = v.try(ctx, misled, want, errs)
	return errors.Join(err, v.pin(context.WithoutCancel(ctx), misled, unix.RTM_DELROUTE)) // none is left at the daemon's end
}

// try does operations. It returns those that may be refused only because a route of
// another device leads to their gateway: IPv6 takes none then, though it be on link.
func (v *overlay) try(ctx context.Context, ops []op, want *desired, errs map[object]error) (misled []op, err error) {
	ids := make([]uint32, len(ops)) // of the nexthop that each route goes through
	encode := func(i int, b []byte) []byte {
		o := ops[i]
		if o.kind == addRoute || o.kind == replaceRoute {
			ids[i] = v.have.nexthops[o.at]
		}
		if !o.kind.isDelete() && !v.may(o, want) {
			return b
		}
		return v.encode(b, o, ids[i])
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
			v.have.apply(o, id)
			delete(errs, o.object())
			return
		}
		errs[o.object()] = describe(o, err)
		if errors.Is(err, unix.EINVAL) && o.at.addr.Is6() {
			misled = append(misled, o)
		}
	}
	err = v.batch.transact(ctx, len(ops), encode, done)
	return misled, err
}

// pin adds or removes routes of the gateways' addresses alone by their devices. What
// was there before goes on until it is replaced: a direct route, or one by the device of
// the other family. That there is one already, or none, does not matter here.
func (v *overlay) pin(ctx context.Context, ops []op, typ uint16) error {
	flags := uint16(0)
	if typ == unix.RTM_NEWROUTE {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	encode := func(i int, b []byte) []byte {
		at := ops[i].at
		key := routeKey{dst: netip.PrefixFrom(at.addr, at.addr.BitLen())}
		return routeMessage(b, typ, flags, key, route{link: at.link, protocol: rtnl.RouteProtocol})
	}
	return v.batch.transact(ctx, len(ops), encode, func(int, []byte, error) {})
}

// may reports whether what o depends on is in place. If not, that failed, and
// its error stands for o's.
func (v *overlay) may(o op, want *desired) bool {
	switch o.kind {
	case moveNeigh:
		return v.have.fdb[want.targets[want.byBase[o.at.addr]].fdb()]
	case addRoute, replaceRoute:
		return v.have.ready(want.targets[want.byBase[o.key.dst.Addr()]], v.nexthops)
	}
	return true
}

// encode appends the message for o; id is the nexthop of a route to add.
func (v *overlay) encode(b []byte, o op, id uint32) []byte {
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

// isNews reports whether anything was refused that was not refused the last
// time. Only then it is worth to read the kernel's state again, which
// would be too dear for every change while one peer stays refused.
func (v *overlay) isNews(errs map[object]error) bool {
	for o := range errs {
		if !v.failed[o] {
			return true
		}
	}
	return false
}

func (v *overlay) remember(errs map[object]error) {
	v.failed = make(map[object]bool, len(errs))
	for o := range errs {
		v.failed[o] = true
	}
}

// withdraw adds what became of each target to refused, and takes back what was
// programmed for a target that could not be completed, so that nothing half
// done is left. It returns the errors that concern no peer.
func (v *overlay) withdraw(ctx context.Context, want *desired, errs map[object]error, refused refusals) ([]error, error) {
	if len(errs) == 0 {
		return nil, nil
	}
	good := newDesired(len(want.targets))
	blamed := map[object]bool{}
	for _, g := range want.targets {
		if v.have.complete(g, v.nexthops) {
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
	v.left = good
	errs, err := v.program(ctx, good)
	for _, err := range errs {
		other = append(other, err)
	}
	return other, err
}
