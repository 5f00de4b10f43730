package controller

import (
	"context"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

// rivalTime is how long this node keeps its MAC while another node that had it first should change
// its own. An overlayd does that at once, and a flanneld never. It is also how long one that did not have it first has
// to change its own, before that is logged.
const rivalTime = time.Second

// ownMACs are the MACs that the own lease is to have: of its IPv4 VTEP and of its IPv6 one.
type ownMACs [2]encap.MAC

// in returns l with these MACs, or l as it is if m is nil.
func (m *ownMACs) in(l control.Lease) control.Lease {
	if m == nil {
		return l
	}
	for i, data := range [...]*control.VTEPData{&l.Backend, &l.BackendV6} {
		if l.VTEP(i == 1).Addr.IsValid() && m[i].IsUnicast() {
			data.MAC = m[i]
		}
	}
	return l
}

// contend has the own lease published with another MAC if another lease has the same MAC and this node
// must give way: at once if the other lease has the better right to it, else if that one had it first and does not change in
// time. To any other claim this node does not give way: whoever may write one lease could else have it change its MAC, which
// costs packets, as often as he likes.
func (f *follower) contend(ctx context.Context, self control.Lease, held bool) {
	if !held || len(f.rib.Rivals()) == 0 {
		f.yieldAt = time.Time{}
		return
	}
	now := time.Now()
	late := !f.yieldAt.IsZero() && !now.Before(f.yieldAt)
	l, to, ok := f.rib.GiveWay(self, late)
	if !ok && late {
		r := f.rib.Rivals()[0]
		text := "another host publishes the MAC that this node had first: this node keeps it"
		if r.Elder {
			text = "no MAC is left for this node: remove the lease of one of these hosts"
		}
		f.logRival(ctx, text, r)
	}
	switch {
	case late && !ok:
		f.yieldAt = now.Add(time.Minute)
		return
	case late || f.yieldAt.IsZero():
		f.yieldAt = now.Add(rivalTime)
	}
	if !ok {
		return
	}
	if macs := (ownMACs{l.Backend.MAC, l.BackendV6.MAC}); f.c.macs.Load() == nil || *f.c.macs.Load() != macs {
		f.c.macs.Store(&macs)
		f.c.publish(func(s *Status) { s.Stats.MACChanges++ })
		f.logRival(ctx, "another host publishes the MAC of this node: publishing another one", to, "mac", l.VTEP(to.VTEP.Addr.Is6()).MAC)
	}
	pace.Wake(f.c.check)
}

// logRival logs a line about a rival, once a minute at most.
func (f *follower) logRival(ctx context.Context, text string, r control.Rival, attrs ...any) {
	due, _ := f.macDue.Due(time.Now(), pace.Notice{Key: r.VTEP.Addr.String() + " " + r.VTEP.MAC.String(), Text: text})
	for range due {
		f.c.cfg.Log.WarnContext(ctx, text, append([]any{"host", r.VTEP.Addr, "subnet", r.Subnet, "was", r.VTEP.MAC}, attrs...)...)
	}
}

// withoutTold leaves out the leases that contend, logContest and logFamilies log.
func withoutTold(rejected []EntryStatus) []EntryStatus {
	isTold := func(e EntryStatus) bool {
		return e.Reason == control.ReasonOwnMAC || e.Reason == control.ReasonContested || e.lacksFamily()
	}
	if !slices.ContainsFunc(rejected, isTold) {
		return rejected
	}
	return slices.DeleteFunc(slices.Clone(rejected), isTold)
}
