package control

import (
	"context"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

// rivalTime is how long this node keeps a MAC that another one is to change. An overlayd does that
// at once, and a flanneld never.
const rivalTime = time.Second

// ownMACs are the MACs that the own lease is to have: of its IPv4 VTEP and of its IPv6 one.
type ownMACs [2]encap.MAC

// in returns l with them. Without any, it is l.
func (m *ownMACs) in(l Lease) Lease {
	if m == nil {
		return l
	}
	for i, mac := range m {
		if v := l.vtep(i == 1); v.Addr.IsValid() && mac.IsUnicast() {
			v.MAC = mac
			l.setVTEP(v, v.Addr)
		}
	}
	return l
}

// contend has the own lease published with another MAC if it has that of another lease and is to
// give way: at once if the other one is in the right, else when that has not given way in time.
func (f *follower) contend(ctx context.Context, self Lease, held bool) {
	if !held || len(f.rib.rivals) == 0 {
		f.yieldAt = time.Time{}
		return
	}
	now := time.Now()
	late := !f.yieldAt.IsZero() && !now.Before(f.yieldAt)
	l, to, ok := f.rib.giveWay(self, late)
	if !ok && late {
		f.logRival(ctx, "no MAC is left for this node: remove the lease of one of these hosts", f.rib.rivals[0])
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
		f.logRival(ctx, "another host publishes the MAC of this node: publishing another one", to, "mac", l.vtep(to.vtep.Addr.Is6()).MAC)
	}
	pace.Wake(f.c.check)
}

// logRival logs a line about a rival, once a minute at most.
func (f *follower) logRival(ctx context.Context, text string, r rival, attrs ...any) {
	due, _ := f.macDue.Due(time.Now(), pace.Notice{Key: r.vtep.Addr.String() + " " + r.vtep.MAC.String(), Text: text})
	for range due {
		f.c.cfg.Log.WarnContext(ctx, text, append([]any{"host", r.vtep.Addr, "subnet", r.subnet, "was", r.vtep.MAC}, attrs...)...)
	}
}

// withoutRivals leaves out the leases that have the own MAC: contend logs them.
func withoutRivals(rejected []EntryStatus) []EntryStatus {
	isRival := func(e EntryStatus) bool { return e.Reason == reasonOwnMAC }
	if !slices.ContainsFunc(rejected, isRival) {
		return rejected
	}
	return slices.DeleteFunc(slices.Clone(rejected), isRival)
}
