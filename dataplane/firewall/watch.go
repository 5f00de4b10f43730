package firewall

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
	"github.com/overlayd/overlayd/dataplane/xtables"
)

// Config says what packets matter.
type Config struct {
	Log     *slog.Logger
	VNI     uint32       // its devices carry the overlay
	Port    uint16       // UDP port of VXLAN; 0: packets leave without encapsulation
	Device  string       // underlay interface
	Locals  []netip.Addr // its addresses, which peers send VXLAN to
	Forward bool         // what this host forwards matters
	Deaf    bool         // without the kernel's notices: for tests
}

// Watch is the part of an overlay that tells which chains of the packet filter drop its packets, from when they appear
// until they are gone. It changes none of them: a firewall is its owner's.
type Watch struct {
	cfg    Config
	watch  *watch.Subscription
	report *dataplane.Reporter

	noticed atomic.Bool // the rules may have changed

	mu       sync.Mutex
	packets  []Packet // that matter
	networks []netip.Prefix
	legacy   []byte    // what was last seen of iptables-legacy
	looked   time.Time // when all rules were looked at
	seen     map[string]time.Time
	faults   dataplane.Faults
}

// Open subscribes to the kernel's notices of nftables, in the network namespace of the calling thread.
func Open(c Config) (*Watch, error) {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_NETFILTER, May: []int{unix.NFNLGRP_NFTABLES}, Deaf: c.Deaf})
	if err != nil {
		return nil, fmt.Errorf("watch the packet filter: %w", err)
	}
	w := &Watch{cfg: c, watch: s, report: dataplane.NewReporter(c.Log, "firewall"), seen: map[string]time.Time{}}
	w.noticed.Store(true)
	return w, nil
}

const (
	// legacyPeriod is the time between two looks at the tables of iptables-legacy, of which the kernel gives no notice.
	legacyPeriod = time.Second
	// anywayPeriod is the time after which all rules are looked at though there was no notice.
	anywayPeriod = 30 * time.Second
	// settle is how long a chain must drop before it is reported: whoever loads a firewall does so in steps, and the
	// rules of this overlay come a moment after a chain that they belong to.
	settle = 600 * time.Millisecond
	// maxPeers is how many peers' datagrams are followed. Chains that drop those of a single peer are rare.
	maxPeers = 8
)

// Sync implements dataplane.Part: it learns which packets matter.
func (w *Watch) Sync(_ context.Context, wanted dataplane.Wanted) (dataplane.Wanted, error) {
	packets := w.packetsOf(wanted)
	w.mu.Lock()
	changed := !slices.Equal(packets, w.packets)
	w.packets, w.networks = packets, wanted.Networks
	w.mu.Unlock()
	if changed {
		w.noticed.Store(true)
		w.watch.Wake()
	}
	return wanted, nil
}

// Prune implements dataplane.Part.
func (w *Watch) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (w *Watch) Status() dataplane.PartStatus { return w.report.Status() }

// Close implements dataplane.Part.
func (w *Watch) Close() error { return w.watch.Close() }

// Run reports what drops the overlay's packets, until ctx ends: a chain of nftables within a second after it has appeared,
// one of iptables-legacy within two.
func (w *Watch) Run(ctx context.Context, _ func()) error {
	return w.watch.Run(ctx, watch.Loop{
		Concerns: w.concerns,
		Look:     func(context.Context) error { w.look(); return nil },
		Spread:   pace.Spread{Gather: 100 * time.Millisecond, Between: 200 * time.Millisecond, Rest: time.Second},
		Resync:   legacyPeriod,
	})
}

// concerns ignores the tables of guards, as Find does.
func (w *Watch) concerns(h unix.NlMsghdr, body []byte) bool {
	_, table, ok := nft.NoticedTable(h, body)
	concerns := ok && !isGuard(table)
	if concerns {
		w.noticed.Store(true)
	}
	return concerns
}

// packetsOf returns the packets that stand for all that the overlay carries.
func (w *Watch) packetsOf(wanted dataplane.Wanted) (packets []Packet) {
	if w.cfg.Forward {
		packets = Overlay(wanted.Subnets, wanted.Networks, w.devices())
	}
	for _, local := range w.cfg.Locals {
		peers := []netip.Addr{{}}
		for _, p := range wanted.Peers {
			if len(peers) < maxPeers && p.Addr.Is4() == local.Is4() && !slices.Contains(peers, p.Addr) {
				peers = append(peers, p.Addr)
			}
		}
		for _, peer := range peers {
			packets = append(packets, Tunnel(w.cfg.Device, local, peer, w.cfg.Port)...)
		}
	}
	return packets
}

func (w *Watch) devices() []string {
	if w.cfg.Port == 0 {
		return nil
	}
	return []string{dataplane.DeviceName(w.cfg.VNI), dataplane.DeviceNameV6(w.cfg.VNI)}
}

// look finds what drops packets if anything may have changed, and publishes it.
func (w *Watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !w.changed(now) {
		return
	}
	drops, err := Find(w.packets...)
	w.faults.Tell(w.cfg.Log, err)
	state := dataplane.StateOK
	if err != nil {
		state = dataplane.StateDegraded
	}
	w.report.Publish(state, err)
	if wait, any := w.settled(now, drops); any {
		w.noticed.Store(true)
		time.AfterFunc(wait, w.watch.Wake)
		return
	}
	w.report.Warn(w.warnings(drops)...)
}

// changed reports whether there may be other rules, or other packets, than at the last look.
func (w *Watch) changed(now time.Time) bool {
	text := legacyText()
	if !w.noticed.Swap(false) && bytes.Equal(text, w.legacy) && now.Sub(w.looked) < anywayPeriod && !w.cfg.Deaf {
		return false
	}
	w.legacy, w.looked = text, now
	return true
}

// legacyText is all that iptables-legacy has, but for its tables for translation, which can be large.
func legacyText() (text []byte) {
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		names, _ := xtables.Names(f) // Find tells of the error
		for _, name := range names {
			if name == "nat" {
				continue
			}
			if t, err := xtables.Read(f, name); err == nil {
				text = append(text, t.Entries...)
			}
		}
	}
	return text
}

// settled reports whether a drop is too new to be told, and how long to wait for it to be old enough.
func (w *Watch) settled(now time.Time, drops []Drop) (wait time.Duration, any bool) {
	seen := map[string]time.Time{}
	for _, d := range drops {
		if !d.Sure {
			continue
		}
		key := fmt.Sprint(d.Name(), d.Packet.Path)
		since, known := w.seen[key]
		if !known {
			since = now
		}
		seen[key] = since
		if left := settle - now.Sub(since); left > 0 {
			wait, any = max(wait, left), true
		}
	}
	w.seen = seen
	return wait, any
}

// warnings says in words which chains drop what for sure.
func (w *Watch) warnings(drops []Drop) (list []dataplane.Warning) {
	for _, path := range []Path{Forwarded, Received, Sent} {
		some := slices.DeleteFunc(slices.Clone(drops), func(d Drop) bool { return !d.Sure || d.Packet.Path != path })
		if len(some) > 0 {
			list = append(list, Warn(some, w.networks, w.cfg.Port))
		}
	}
	return list
}

// Warn is what to tell people of chains that drop packets of one path: at least one. networks are those of the overlay.
func Warn(drops []Drop, networks []netip.Prefix, port uint16) dataplane.Warning {
	because := fmt.Sprintf("%s (%s)", Names(drops), drops[0].Rule)
	switch drops[0].Packet.Path {
	case Forwarded:
		dropped, fixes := forwarded(drops, networks)
		return dataplane.Warning{ID: dataplane.WarnForward, Fix: fixes,
			Text: fmt.Sprintf("a firewall drops what this host forwards for the overlay network %s: %s", dropped, because)}
	case Received:
		return dataplane.Warning{ID: dataplane.WarnPort, Fix: drops[0].Fix(Accept{UDP: port}),
			Text: fmt.Sprintf("a firewall drops the VXLAN datagrams that %s sends to this host, UDP port %d: %s", who(drops), port, because)}
	}
	return dataplane.Warning{ID: dataplane.WarnPort, Fix: drops[0].Fix(Accept{UDP: port}),
		Text: fmt.Sprintf("a firewall drops the VXLAN datagrams that this host sends to %s, UDP port %d: %s", who(drops), port, because)}
}

// forwarded names the networks whose packets are dropped, and what each chain has to accept of them.
func forwarded(drops []Drop, networks []netip.Prefix) (names, fixes string) {
	var dropped, all []string
	for _, n := range networks {
		for _, d := range drops {
			if d.Packet.family() != familyOf(n.Addr()) {
				continue
			}
			if !slices.Contains(dropped, n.String()) {
				dropped = append(dropped, n.String())
			}
			for _, fix := range []string{d.Fix(Accept{Src: n}), d.Fix(Accept{Dst: n})} {
				if !slices.Contains(all, fix) {
					all = append(all, fix)
				}
			}
		}
	}
	return strings.Join(dropped, ", "), strings.Join(all, "; ")
}

// who names the peers that drops are about: everybody if one is about no peer in particular.
func who(drops []Drop) string {
	var names []string
	for _, d := range drops {
		peer := d.Packet.Src
		if d.Packet.Path == Sent {
			peer = d.Packet.Dst
		}
		switch {
		case !peer.IsValid():
			return "any peer"
		case !slices.Contains(names, peer.String()):
			names = append(names, peer.String())
		}
	}
	return strings.Join(names, ", ")
}
