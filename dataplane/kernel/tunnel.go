package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// tunnel is the overlay device of one family with all that is on it. Its
// methods are called by one goroutine at a time.
type tunnel struct {
	log   *slog.Logger
	cfg   *Config
	rt    *rtnl.Conn
	batch *conn

	name     string
	index    int
	watched  atomic.Int64 // index, for the goroutine that reads notifications
	mac      encap.MAC
	nexthops bool            // the kernel has nexthop objects (5.3)
	networks []netip.Prefix  // the overlay networks of the family
	have     *state          // nil where it must be read first
	left     *desired        // what the last sync left programmed; nil where that failed
	mended   bool            // the kernel was found other than it was left
	failed   map[object]bool // what the kernel refused the last time
}

// sync makes w true for the tunnel's family. Errors of single peers come as
// refusals, what concerns all of them as err.
func (t *tunnel) sync(ctx context.Context, w dataplane.Wanted) (refusals, error) {
	if n := t.own(w.Networks); !slices.Equal(n, t.networks) {
		t.networks, t.have, t.left = n, nil, nil // other routes are ours now
	}
	l, err := t.ensureDevice()
	if err != nil {
		return nil, err
	}
	errDevice := t.adjust(l, w) // with a wrong MTU, say, peers are better reached than not
	want, refused := compile(w, t.cfg)
	errs, err := t.program(ctx, want)
	if t.isNews(errs) || errors.Is(err, errOverrun) {
		// Perhaps the kernel is not as remembered: somebody changed our objects.
		t.have = nil
		errs, err = t.program(ctx, want)
	}
	if err != nil {
		t.have, t.left = nil, nil
		return refused, errors.Join(errDevice, err)
	}
	t.remember(errs)
	t.left = want
	other, err := t.withdraw(ctx, want, errs, refused)
	if err != nil || len(other) > 0 {
		t.have, t.left = nil, nil
	}
	return refused, errors.Join(append(other, errDevice, err)...)
}

// program plans and applies, reading the kernel's state first where it is not known.
// It returns what the kernel refused, by object.
func (t *tunnel) program(ctx context.Context, want *desired) (map[object]error, error) {
	if t.have == nil {
		if err := t.read(); err != nil {
			return nil, err
		}
		t.mended = t.mended || t.left == nil || len(plan(t.have, t.left, t.nexthops)) > 0
	}
	errs := map[object]error{}
	ops := plan(t.have, want, t.nexthops)
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].kind.stage() == ops[0].kind.stage() {
			n++
		}
		if err := t.apply(ctx, ops[:n], want, errs); err != nil {
			return nil, fmt.Errorf("program %s: %w", t.name, err)
		}
		ops = ops[n:]
	}
	return errs, nil
}

// apply does the operations of one stage.
func (t *tunnel) apply(ctx context.Context, ops []op, want *desired, errs map[object]error) error {
	ids := make([]uint32, len(ops)) // of the nexthop that each route goes through
	encode := func(i int, b []byte) []byte {
		o := ops[i]
		if o.kind == addRoute || o.kind == replaceRoute {
			ids[i] = t.have.nexthops[o.key.dst.Addr()]
		}
		if !o.kind.isDelete() && !t.may(o, want) {
			return b
		}
		return t.encode(b, o, ids[i])
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
			t.have.apply(o, id)
			return
		}
		errs[o.object()] = describe(o, err)
	}
	return t.batch.transact(ctx, len(ops), encode, done)
}

// may reports whether what o depends on is in place. If not, that failed, and
// its error stands for o's.
func (t *tunnel) may(o op, want *desired) bool {
	switch o.kind {
	case moveNeigh:
		return t.have.fdb[want.targets[want.byBase[o.base]].fdb()]
	case addRoute, replaceRoute:
		return t.have.ready(want.targets[want.byBase[o.key.dst.Addr()]], t.nexthops)
	}
	return true
}

// encode appends the message for o; id is the nexthop of a route to add.
func (t *tunnel) encode(b []byte, o op, id uint32) []byte {
	const replace, create = unix.NLM_F_CREATE | unix.NLM_F_REPLACE, unix.NLM_F_CREATE | unix.NLM_F_EXCL
	switch o.kind {
	case addNeigh, moveNeigh:
		return neighMessage(b, unix.RTM_NEWNEIGH, replace, t.index, o.base, o.mac)
	case delNeigh:
		return neighMessage(b, unix.RTM_DELNEIGH, 0, t.index, o.base, o.mac)
	case addFDB:
		return fdbMessage(b, unix.RTM_NEWNEIGH, replace, t.index, o.fdb)
	case delFDB:
		return fdbMessage(b, unix.RTM_DELNEIGH, 0, t.index, o.fdb)
	case addNexthop:
		return newNexthopMessage(b, t.index, o.base)
	case delNexthop:
		return delNexthopMessage(b, o.id)
	case addRoute: // exclusive: somebody else's route to the same subnet is never replaced
		return routeMessage(b, unix.RTM_NEWROUTE, create, t.index, o.key, ourRoute(o.key.dst.Addr(), id))
	case replaceRoute:
		return routeMessage(b, unix.RTM_NEWROUTE, replace, t.index, o.key, ourRoute(o.key.dst.Addr(), id))
	}
	return routeMessage(b, unix.RTM_DELROUTE, 0, cmp.Or(o.route.link, t.index), o.key, o.route)
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
	return fmt.Errorf("%s %s: %w", o.kind, o.base, err)
}

// isNews reports whether anything was refused that was not refused the last
// time. Only then it is worth to read the kernel's state again, which
// would be too dear for every change while one peer stays refused.
func (t *tunnel) isNews(errs map[object]error) bool {
	for o := range errs {
		if !t.failed[o] {
			return true
		}
	}
	return false
}

func (t *tunnel) remember(errs map[object]error) {
	t.failed = make(map[object]bool, len(errs))
	for o := range errs {
		t.failed[o] = true
	}
}

// withdraw adds what became of each target to refused, and takes back what was
// programmed for a target that could not be completed, so that nothing half
// done is left. It returns the errors that concern no peer.
func (t *tunnel) withdraw(ctx context.Context, want *desired, errs map[object]error, refused refusals) ([]error, error) {
	if len(errs) == 0 {
		return nil, nil
	}
	good := newDesired(len(want.targets))
	blamed := map[object]bool{}
	for _, g := range want.targets {
		if t.have.complete(g, t.nexthops) {
			good.add(g)
			continue
		}
		objects := []object{{class: 'n', base: g.base()}, {class: 'f', fdb: g.fdb()},
			{class: 'x', base: g.base()}, {class: 'r', key: routeKey{dst: g.dst}}}
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
	t.left = good
	errs, err := t.program(ctx, good)
	for _, err := range errs {
		other = append(other, err)
	}
	return other, err
}
