package uplink

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

// way is what the Uplink knows about a destination.
type way struct {
	route
	out        *Way   // nil: the destination is left to the sockets
	generation uint64 // generation of the routes that it follows from
	sockets    bool   // see Destination
	seen       time.Time
}

// resolve makes every destination's way follow from the present routes.
func (u *Uplink) resolve(list []Destination, now time.Time) {
	var ask []netip.Addr
	for _, d := range list {
		w := u.ways[d.Addr]
		if w == nil {
			w = &way{}
			u.ways[d.Addr] = w
		}
		w.seen = now
		if w.generation != u.generation || w.sockets != d.Sockets {
			w.generation, w.sockets = u.generation, d.Sockets
			ask = append(ask, d.Addr)
		}
	}
	if len(ask) == 0 {
		return
	}
	began := time.Now()
	routes, errs, failed := u.ask(ask)
	unmet := u.meet(ask, routes, errs)
	failed = failed || unmet != nil
	links := map[int]linkFound{}
	var steps []nft.Step
	for i, to := range ask {
		r, err := routes[i], errs[i]
		l, ok := links[r.link]
		if err == nil && !ok {
			l = u.findLink(r.link)
			links[r.link], failed = l, failed || l.err != nil && l.err != errNoLink
		}
		if err == nil {
			err = l.err
		}
		if err == nil && l.cuts && u.ways[to].sockets {
			err = errCuts
		}
		if err == nil {
			err = unmet
		}
		if n := u.hops[r.hop(to)]; err == nil && n.silent {
			err = errSilent
		}
		if r.mtu > 0 {
			l.mtu = min(l.mtu, r.mtu)
		}
		u.tell(now, to, err)
		steps = append(steps, u.change(to, r, l.mtu, err == nil)...)
	}
	u.commit(steps)
	if failed {
		u.generation++ // the next look tries again
	}
	if soonest := time.Now().Add(20 * time.Since(began)); soonest.After(u.again) { // thousands of ways by a dead router are no work for all the time
		u.again = soonest
	}
}

// linkFound is the result of checking a link.
type linkFound struct {
	mtu  int
	cuts bool // the kernel cuts superpackets for it
	err  error
}

// tell logs why a destination is left to the sockets.
func (u *Uplink) tell(now time.Time, to netip.Addr, err error) {
	if err == nil {
		return
	}
	if due, _ := u.notices.Due(now, pace.Notice{Key: "way", Text: err.Error()}); len(due) > 0 { // one line for all destinations with the same reason
		u.cfg.Log.Info("superpackets to peers go by UDP sockets, in segments", "first", to, "err", err)
	}
}

// change sets the way of a destination from a route, and returns the steps that change the table accordingly.
func (u *Uplink) change(to netip.Addr, r route, mtu int, ok bool) (steps []nft.Step) {
	w, hops := u.ways[to], u.device.Load()
	if hops == nil || w.out != nil && ok && w.route == r && w.out.MTU == mtu {
		return nil
	}
	if w.out != nil {
		w.out.device.Store(nil) // its next hop goes, and not only this Refresh has the way
		steps = nft.DeleteHop(hops.hops, to)
	}
	w.out, w.route = nil, r
	if ok {
		gateway := r.gateway
		if !gateway.IsValid() {
			gateway = to
		}
		w.out = u.newWay(hops, to, mtu)
		steps = append(steps, nft.AddHop(hops.hops, to, nft.Hop{Link: r.link, Gateway: gateway})...)
	}
	return steps
}

// newWay makes the headers to a destination by a device. Their TTL is one higher, because the forwarding rule decrements it.
func (u *Uplink) newWay(d *device, to netip.Addr, mtu int) *Way {
	if !to.IsValid() {
		to = u.cfg.Local
	}
	w := &Way{MTU: mtu, v6: to.Is6(), outer: encap.NewOuter(u.cfg.Local, netip.AddrPortFrom(to, u.cfg.Port), u.cfg.TTL+1, u.cfg.DF)}
	w.device.Store(d)
	return w
}

// commit changes the table. If the kernel refuses, the device is made again, because the state of the table is unknown.
func (u *Uplink) commit(steps []nft.Step) {
	d := u.device.Load()
	if d == nil {
		return
	}
	if err := d.rules.Commit(steps); err != nil {
		u.why = fmt.Errorf("change rules of %s: %w", d.name, err)
		if u.device.CompareAndSwap(d, nil) {
			u.lost.Store(&loss{u.why, d.index})
			d.close()
		}
		clear(u.ways)
	}
}

// forget removes ways that nobody has asked for lately.
func (u *Uplink) forget(now time.Time) {
	var steps []nft.Step
	gone := false
	for to, w := range u.ways {
		if now.Sub(w.seen) < wayKept {
			continue
		}
		if d := u.device.Load(); d != nil && w.out != nil {
			w.out.device.Store(nil)
			steps = append(steps, nft.DeleteHop(d.hops, to)...)
		}
		delete(u.ways, to)
		gone = true
	}
	if gone {
		u.part()
	}
	u.commit(steps)
}
