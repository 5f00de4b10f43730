package hostroute

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// decide returns the direct routes for w that the host's routing allows.
func (r *Routes) decide(w dataplane.Wanted) decision {
	if !r.cfg.Direct {
		return decision{peers: w.Peers}
	}
	return decide(w, r.resolver.link, r.refused)
}

// program decides about w, and adds and replaces what is needed: ops. If the kernel refuses
// something by the remembered routes, they are read again; if it still does, the subnet gets no
// direct route.
func (r *Routes) program(w dataplane.Wanted) (d decision, ops []op, err error) {
	for fresh := false; ; {
		read, err := r.read(w)
		if err != nil {
			return decision{}, nil, err
		}
		fresh = fresh || read
		d := r.decide(w)
		g := r.goal(w, d.direct)
		ops := plan(r.have, g)
		refused, err := r.apply(ops)
		if len(refused) == 0 {
			r.lost = r.without(d.peers)
			r.unfinished = err != nil || len(r.reasons) > 0
			r.known = r.known && err == nil
			s := newScope(w, r.cfg, r.resolver.used())
			s.await(r.taken)
			r.scope.Store(s)
			r.publish(g, err)
			return d, ops, err
		}
		if !fresh {
			r.known = false
			continue
		}
		r.refuse(refused, d.direct)
	}
}

// refuse notes what the kernel has refused. It is tried again whenever the routes are read, but
// logged once. What was not to be direct is a route of flannel's that cannot become ours: Prune removes it.
func (r *Routes) refuse(refused map[netip.Prefix]error, direct map[netip.Prefix]hop) {
	var lost, left []pace.Notice
	for _, dst := range slices.SortedFunc(maps.Keys(refused), netip.Prefix.Compare) {
		r.refused[dst] = true
		n := pace.Notice{Key: dst.String(), Text: refused[dst].Error()}
		if direct[dst] == (hop{}) {
			left = append(left, n)
			continue
		}
		r.reasons[dst] = refused[dst]
		lost = append(lost, n)
	}
	r.say("no direct route, encapsulating instead", lost)
	r.say("routes of flannel cannot be taken over: removing them", left)
}

// say logs what is new of the notices.
func (r *Routes) say(text string, notices []pace.Notice) {
	if due, more := r.notices.Due(time.Now(), notices...); len(due) > 0 {
		r.cfg.Log.Warn(text, "subnets", len(due)+more, "first", due[0].Key, "err", due[0].Text)
	}
}

func (r *Routes) goal(w dataplane.Wanted, direct map[netip.Prefix]hop) goal {
	g := goal{direct: direct, refused: r.refused}
	if r.cfg.Blackhole {
		g.blackholes = w.Subnets
	}
	if time.Now().Before(r.settled) {
		g.settling = map[netip.Prefix]bool{}
		for _, s := range w.Subnets {
			g.settling[s] = true
		}
		for _, p := range w.Peers {
			for _, s := range p.Subnets {
				g.settling[s] = true
			}
		}
	}
	return g
}
