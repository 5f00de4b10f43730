package guard

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Run repairs what others change in the rules, until ctx ends or Close. While the rules cannot be written, Holds is false and
// the overlay device is down. Run calls again whenever Holds changes.
func (g *Guard) Run(ctx context.Context, again func()) error {
	if g.watch == nil {
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var links errgroup.Group
	links.Go(func() error {
		defer cancel()
		return g.runLinks(ctx)
	})
	err := g.run(ctx, again) // in this goroutine, because its thread may have a network namespace of its own
	cancel()
	return errors.Join(err, links.Wait())
}

// runLinks has the rules written again when an overlay device is made again, or another vxlan device or a VRF appears.
func (g *Guard) runLinks(ctx context.Context) error {
	return g.links.Run(ctx, watch.Loop{
		Concerns: func(_ unix.NlMsghdr, body []byte) bool {
			return bytes.Contains(body, []byte(dataplane.DeviceName(g.cfg.VNI)+"\x00")) || bytes.Contains(body, []byte(dataplane.DeviceNameV6(g.cfg.VNI)+"\x00")) ||
				bytes.Contains(body, []byte("vxlan\x00")) || bytes.Contains(body, []byte("vrf\x00"))
		},
		Look:   func(context.Context) error { g.relinked.Store(true); g.watch.Wake(); return nil },
		Spread: pace.Spread{Gather: 5 * time.Millisecond},
	})
}

func (g *Guard) run(ctx context.Context, again func()) error {
	settled := time.AfterFunc(time.Until(g.relaxed), g.settle)
	defer settled.Stop()
	return g.watch.Run(ctx, watch.Loop{
		Concerns: func(h unix.NlMsghdr, body []byte) bool {
			f, table, ok := nft.ChangedContent(h, body)
			return ok && f == nft.Inet && table == g.name
		},
		Look:    func(context.Context) error { g.look(again); return nil },
		Spread:  pace.Spread{Gather: 5 * time.Millisecond, Between: 50 * time.Millisecond, Rest: time.Second},
		Resync:  g.cfg.Resync,
		Pending: g.failed.Load,
	})
}

// settle has the rules written that were left out at first.
func (g *Guard) settle() {
	g.mu.Lock()
	g.unsettled = g.synced
	g.mu.Unlock()
	g.watch.Wake()
}

// look compares the table with what was written, and repairs it.
func (g *Guard) look(again func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tell()
	if g.isOff() || !g.synced {
		return
	}
	held := g.open.Load()
	if g.unsettled && !g.failed.Load() {
		g.unsettled = false
		g.faults.Tell(g.cfg.Log, g.ensure(g.wanted))
	}
	g.repair()
	if g.open.Load() != held {
		again()
	}
}

func (g *Guard) repair() {
	failed := g.failed.Load()
	if !failed {
		if !slices.Equal(g.cfg.links(), g.indices) || g.cfg.tracksIPVS() != g.ipvs || g.relinked.Load() && g.othersChanged() {
			g.faults.Tell(g.cfg.Log, g.ensure(g.wanted))
			return
		}
		c, err := g.compare()
		if err == nil && c {
			return
		}
		change := dataplane.Change{Op: dataplane.OpReplace, Kind: kindTable, Key: g.name}
		if left, held := g.report.Held(change); held && g.isThere() {
			time.AfterFunc(left, g.watch.Wake) // somebody keeps undoing the repair: wait
			return
		}
		g.there = false
		if err = g.ensure(g.wanted); err == nil {
			g.report.Repaired(change)
		}
		g.faults.Tell(g.cfg.Log, err)
		return
	}
	g.there = false
	g.faults.Tell(g.cfg.Log, g.ensure(g.wanted))
}

// othersChanged reports whether the links of others are not what the rules know. The caller holds mu.
func (g *Guard) othersChanged() bool {
	others, vrf := g.cfg.otherLinks()
	return vrf != g.vrf || !others.equal(g.others)
}

// compare reports whether the kernel has what was written.
func (g *Guard) compare() (same bool, err error) {
	now, err := nft.Generation(nft.Inet)
	if err != nil {
		return false, err
	}
	if g.there && now == g.seen {
		return true, nil
	}
	turn.RLock()
	c, err := read(g.name, true)
	turn.RUnlock()
	if errors.Is(err, nft.ErrChanging) {
		g.watch.Wake()
		return true, nil
	}
	if err != nil || !c.exists || c.text != g.text || !c.sets.equal(g.members.have()) {
		return false, err
	}
	g.seen = c.generation
	return true, nil
}

// early is how many packets of a new peer may come before its lease is seen here, which takes some 50 ms. They alarm nobody.
const early = 100

// tell logs how many packets were dropped since the last line, for each reason at most once in ten minutes.
func (g *Guard) tell() {
	now := g.Drops()
	if n := now[dataplane.DropUnknownVTEP] - g.told[dataplane.DropUnknownVTEP]; g.joined && n > 0 && n <= early {
		g.told[dataplane.DropUnknownVTEP] += n
		g.cfg.Log.Debug("packets dropped before the lease of a new peer was seen", "packets", n)
	}
	g.joined = false
	for _, why := range reasons {
		n := now[why] - g.told[why]
		if n == 0 {
			continue
		}
		if due, _ := g.notices.Due(time.Now(), pace.Notice{Key: "drop " + why.String(), Text: why.String()}); len(due) > 0 {
			g.told[why] = now[why]
			g.cfg.Log.Warn("packets dropped by the guard", "reason", why, "packets", n, "fix", fixes[why])
		}
	}
}

// fixes say, for each reason, what to do if the dropped packets are good.
var fixes = map[dataplane.Drop]string{
	dataplane.DropUnknownVTEP:    "a host that is not a peer sends to the VXLAN port; if it should be a peer, see `overlayd status` for its lease, and --source-check=inner for peers behind a NAT",
	dataplane.DropBadSource:      "a pod or a peer uses a source that is not its own; --source-check=overlay admits sources outside of the overlay",
	dataplane.DropBadDestination: "a peer sends packets that are for no pod of this host, or a host sends to an address of this one that is not its public one; see `overlayd status` on that peer",
	dataplane.DropBadHeader:      "a host sends packets to the VXLAN port that are not VXLAN",
	dataplane.DropBadVNI:         "a host that is set up for another network sends here, or somebody probes the VXLAN port",
	dataplane.DropFragment:       "a host sends fragments to the VXLAN port, which no peer needs to do",
	dataplane.DropPlainSource:    "a host on a link uses addresses of pods to which this host has no route by that link; --plain-source=allow permits that",
	dataplane.DropEgress:         "a process or pod of this host sends VXLAN to a peer, or from the VXLAN port: if a process may, have it set the mark of --egress-mark; what this host masquerades for another network with the same VNI needs another VNI there",
	dataplane.DropNarrowPath:     "somebody forges ICMP, or the path to a peer is too narrow: a smaller Backend.MTU, or a lower --min-path-mtu",
	dataplane.DropFlood:          "a host floods the VXLAN port; find it, and close the port to strangers",
}
