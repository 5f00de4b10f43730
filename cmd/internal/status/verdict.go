package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// State is how well a daemon does its work.
type State string

// The states of a daemon, from good to bad.
const (
	Healthy  State = "healthy"
	Degraded State = "degraded"  // packets are forwarded, but not to every peer, or something keeps changes from being seen
	NotReady State = "not_ready" // a network is not forwarded, or was not yet
)

func (s State) grade() int { return slices.Index([]State{Healthy, Degraded, NotReady}, s) }

// String returns the state for people.
func (s State) String() string { return strings.ReplaceAll(string(s), "_", " ") }

// Verdict is the state of a daemon, and why it is not healthy.
type Verdict struct {
	State State  `json:"state"`
	Why   string `json:"why,omitempty"`  // the first reason
	More  int    `json:"more,omitempty"` // how many more there are
}

// String returns the verdict in one line.
func (v Verdict) String() string {
	text := v.State.String()
	if v.Why != "" {
		text += ": " + v.Why
	}
	if v.More > 0 {
		text += fmt.Sprintf(" (and %d more)", v.More)
	}
	return text
}

// Warning is something that is not as it should be.
type Warning struct {
	ID      string    `json:"id"`                // stable, in snake_case
	State   State     `json:"state"`             // that it brings the daemon into
	Network string    `json:"network,omitempty"` // empty: the only one, or all
	Text    string    `json:"text"`              // what is wrong, for people
	Fix     string    `json:"fix,omitempty"`     // what to do next
	Since   time.Time `json:"since,omitzero"`
}

func verdictOf(warnings []Warning) Verdict {
	v := Verdict{State: Healthy}
	for _, w := range warnings {
		if w.State.grade() > v.State.grade() {
			v.State = w.State
		}
	}
	for _, w := range warnings {
		switch {
		case w.State == Healthy:
		case v.Why == "":
			v.Why = w.Text
			if w.Network != "" {
				v.Why = "network " + w.Network + ": " + w.Text
			}
		default:
			v.More++
		}
	}
	return v
}

// Judge returns what is not as it should be, the gravest first. A new kind of fault is a line in the list.
func Judge(d Daemon) (all []Warning) {
	if !d.Ready && len(d.Networks) == 0 {
		all = append(all, Warning{ID: "networks_unknown", State: NotReady, Text: "it is not known yet which networks there are", Fix: fixStore})
	}
	for i := range d.Networks {
		n := &d.Networks[i]
		for _, check := range checksOf(n) {
			for _, w := range check(n, d.At) {
				w.Network, w.Text = n.Name, strings.ReplaceAll(w.Text, "\n", "; ") // of several errors
				all = append(all, w)
			}
		}
	}
	if len(d.Networks) > 0 {
		all = append(all, judgeEtcd(d.Networks[0].Etcd)...)
		all = append(all, judgeCertificates(d.Networks[0].Certificates, d.At)...)
	}
	all = append(all, judgeEndpoints(d.Endpoints)...)
	all = append(all, judgeLog(d.Process)...)
	slices.SortStableFunc(all, func(a, b Warning) int { return b.State.grade() - a.State.grade() })
	return all
}

// checksOf are the checks of a network, in the order of their warnings. If neither the store nor any peer is reached, the peers come
// first: they are what pods miss.
func checksOf(n *Network) []func(*Network, time.Time) []Warning {
	all := []func(*Network, time.Time) []Warning{judgeUnderlay, judgeBeside, judgeReady}
	if n.Store != nil && !n.Store.Connected && n.isCutOff() {
		return append(all, judgePeers, judgeStore, judgeConfig, judgeLease, judgeFiles, judgeParts, judgeEntries)
	}
	return append(all, judgeStore, judgeConfig, judgeLease, judgeFiles, judgeParts, judgePeers, judgeEntries)
}

// What to do about faults whose own text does not say it.
const (
	fixStore = "look at the store and the way to it; the log has each error"
	fixLog   = "look at the log of this daemon"
	fixFile  = "make room on that disk, or make it writable: overlayd tries again by itself"
)

// judgeUnderlay says that the interface to the other hosts cannot be used: of what else is wrong, much follows from that.
func judgeUnderlay(n *Network, _ time.Time) (all []Warning) {
	state := Degraded
	if !n.Ready {
		state = NotReady
	}
	for _, w := range n.UnderlayFaults {
		all = append(all, Warning{ID: w.ID, State: state, Text: w.Text, Fix: w.Fix, Since: w.Since})
	}
	return all
}

// judgeBeside says who else serves the network: of repairs, many follow from that.
func judgeBeside(n *Network, _ time.Time) (all []Warning) {
	for _, w := range n.Beside {
		all = append(all, Warning{ID: w.ID, State: Degraded, Text: w.Text, Fix: w.Fix, Since: w.Since})
	}
	return all
}

// judgeReady says why a network is not ready.
func judgeReady(n *Network, _ time.Time) []Warning {
	if n.Ready {
		return nil
	}
	w := Warning{ID: "not_ready", State: NotReady, Fix: fixLog}
	switch {
	case n.Err != "":
		w.ID, w.Text, w.Fix, w.Since = "no_session", n.Err, cmp.Or(n.Fix, fixLog), n.ErrSince
	case n.LeaseFault.Err != "":
		w.ID, w.Text, w.Fix, w.Since = "no_lease", "no lease: "+n.LeaseFault.Err, cmp.Or(n.LeaseFault.Fix, fixLog), n.LeaseFault.Since
	case n.SyncFault.Err != "":
		w.ID, w.Text, w.Fix, w.Since = "not_synced", "the dataplane cannot be set up: "+n.SyncFault.Err, cmp.Or(n.SyncFault.Fix, fixLog), n.SyncFault.Since
	case n.SessionStart.IsZero():
		w.Text = "starting: the network config and the underlay are not known yet"
	default:
		w.Text, w.Since = "starting: there is no lease yet, or not every peer was attempted", n.SessionStart
	}
	return []Warning{w}
}

// judgeStore says what is wrong with the store.
func judgeStore(n *Network, now time.Time) (all []Warning) {
	s := n.Store
	if s == nil {
		return nil
	}
	name := strings.TrimSpace(s.Kind + " " + s.Endpoint)
	switch {
	case s.Since.IsZero():
	case !s.Connected && (s.Refusal || s.Untrusted): // older daemons say Untrusted alone
		w := Warning{ID: "store_unreachable", State: Degraded, Text: s.Err, Fix: fixStore, Since: s.Since}
		if last := len(n.Certificates) - 1; s.Untrusted && last >= 0 { // that which this host shows
			w.Fix = n.Certificates[last].Fix
		}
		all = append(all, w)
	case !s.Connected:
		text := fmt.Sprintf("%s does not answer", name)
		if !s.LastAnswer.IsZero() {
			goesOn := "packets are forwarded, and "
			if n.isCutOff() {
				goesOn = ""
			}
			text = fmt.Sprintf("%s has not answered for %s: %schanges of others are not seen", name, Short(now.Sub(s.LastAnswer)), goesOn)
		}
		all = append(all, Warning{ID: "store_unreachable", State: Degraded, Text: text, Fix: fixStore, Since: s.Since})
	case s.Err != "":
		all = append(all, Warning{ID: "store_refuses", State: Degraded, Text: s.Err, Fix: fixStore, Since: s.Since})
	}
	for _, u := range s.Unused {
		all = append(all, Warning{ID: "endpoint_unused", State: Healthy, Since: u.Since, Fix: u.Fix, Text: fmt.Sprintf("endpoint %s of etcd is not used: %s", u.Endpoint, u.Err)})
	}
	for _, c := range s.Clones {
		if c.Gone.IsZero() {
			all = append(all, Warning{ID: "clone", State: Degraded, Since: c.Since, Text: fmt.Sprintf("host %s (%s) runs with a copy of this node's file", c.Host, c.PublicIP),
				Fix: "on the host that is the copy: remove <subnet file>.node, and start overlayd again"})
		}
	}
	return all
}

// judgeConfig says that the network config in the store is not in force.
func judgeConfig(n *Network, now time.Time) []Warning {
	h := n.ConfigHeld
	switch {
	case h == nil:
		return nil
	case len(h.Networks) == 0:
		return []Warning{{ID: "config_refused", State: Degraded, Since: h.Since, Text: "no usable network config in the store: " + h.Why,
			Fix: "put a right one into the store, or no daemon that starts becomes ready; overlayd check config says what is wrong with one"}}
	case h.Until.IsZero():
		return []Warning{{ID: "config_refused", State: Degraded, Since: h.Since, Text: "the network config in the store is not applied: " + h.Why,
			Fix: "overlayd check config says what this host can carry; put such a config into the store"}}
	}
	return []Warning{{ID: "config_held", State: Degraded, Since: h.Since, Text: fmt.Sprintf("%s: it is applied in %s if it still stands then", h.Why, Short(h.Until.Sub(now))),
		Fix: "if it is not meant, put the one before back into the store until then"}}
}

// judgeLease says what is wrong with the lease and the last Sync of a network that was ready.
func judgeLease(n *Network, _ time.Time) (all []Warning) {
	for _, e := range n.Rejected {
		if isContest(e) {
			all = append(all, Warning{ID: "lease_contested", State: Degraded, Since: e.Since, Fix: cmp.Or(e.Fix, fixLog),
				Text: fmt.Sprintf("an older lease, of %s, has the subnet of this node: %s", ownerOf(e), e.Err)})
			break
		}
	}
	if !n.Ready {
		return all
	}
	if f := n.LeaseFault; f.Err != "" {
		w := Warning{ID: "lease_not_renewed", State: Degraded, Text: "the lease cannot be renewed: " + f.Err, Fix: cmp.Or(f.Fix, fixStore), Since: f.Since}
		if n.Lease == nil {
			w.ID, w.State, w.Text = "lease_lost", NotReady, "the lease is lost: "+f.Err
		}
		all = append(all, w)
	}
	if f := n.SyncFault; f.Err != "" {
		all = append(all, Warning{ID: "not_synced", State: Degraded, Text: "the dataplane cannot be changed: " + f.Err, Fix: cmp.Or(f.Fix, fixLog), Since: f.Since})
	}
	return all
}

// judgeFiles says which files cannot be written. Packets are forwarded meanwhile.
func judgeFiles(n *Network, _ time.Time) (all []Warning) {
	for _, f := range n.FileFaults {
		all = append(all, Warning{ID: "file_not_written", State: Degraded, Text: "a file of overlayd cannot be written: " + f.Err, Fix: cmp.Or(f.Fix, fixFile), Since: f.Since})
	}
	return all
}

// judgeParts says which parts do not work, unless only for peers, which are named there, and what they warn of.
func judgeParts(n *Network, _ time.Time) (all []Warning) {
	failed := slices.ContainsFunc(n.Peers, func(p controller.PeerStatus) bool { return p.State == controller.PeerFailed })
	for _, p := range n.Parts {
		for _, w := range p.Warnings {
			all = append(all, Warning{ID: w.ID, State: Degraded, Text: w.Text, Fix: w.Fix, Since: w.Since})
		}
		if p.State == dataplane.StateOK || p.State == dataplane.StateDegraded && failed {
			continue
		}
		all = append(all, Warning{ID: "part_" + string(p.State), State: Degraded, Text: fmt.Sprintf("%s: %s", p.Name, p.Err), Fix: cmp.Or(p.Fix, fixLog), Since: p.Since})
	}
	return all
}

// judgePeers says which peers do not work, one line for each reason.
func judgePeers(n *Network, _ time.Time) (all []Warning) {
	peers := n.AllPeers()
	at := map[string]int{} // of all, by ID
	counts := map[string]int{}
	for i := range peers {
		p := &peers[i]
		if p.Works() || p.State == controller.PeerRefused { // those are entries of the store
			continue
		}
		reason, why, fix := p.Why()
		id := "peers_" + cmp.Or(reason, string(p.State))
		if counts[id]++; counts[id] == 1 {
			at[id] = len(all)
			all = append(all, Warning{ID: id, State: Degraded, Text: p.Title() + ": " + why, Fix: cmp.Or(fix, fixLog), Since: p.since()})
			continue
		}
		if w := &all[at[id]]; p.since().Before(w.Since) {
			w.Since = p.since()
		}
	}
	for id, i := range at {
		if more := counts[id] - 1; more > 0 {
			all[i].Text = fmt.Sprintf("%d of %d peers: %s", counts[id], len(peers), all[i].Text)
		}
	}
	return append(all, judgeProbes(n.Probes)...)
}

// since tells when what Why says became so.
func (p *Peer) since() time.Time {
	if p.Err == "" && p.Probe != nil {
		return p.Probe.Since
	}
	return p.Since
}

// judgeProbes says that no peer can be probed, which is not a fault of the overlay.
func judgeProbes(p *Probes) []Warning {
	if p == nil || p.Err == "" {
		return nil
	}
	return []Warning{{ID: "probes", State: Healthy, Text: "it is not known which peers can be reached: " + p.Err, Fix: p.Fix}}
}

// judgeEntries says which entries of the store are not used.
func judgeEntries(n *Network, _ time.Time) (all []Warning) {
	if refused := slices.DeleteFunc(slices.Clone(n.Rejected), isContest); len(refused) > 0 {
		first := refused[0]
		all = append(all, Warning{ID: "leases_refused", State: Degraded, Fix: cmp.Or(first.Fix, fixLog), Since: first.Since,
			Text: fmt.Sprintf("%s not used: %s of %s: %s", isOrAre(keysOf(refused), "lease", "leases"), first.Key, ownerOf(first), first.Err)})
	}
	if len(n.Bad) > 0 {
		first := n.Bad[0]
		all = append(all, Warning{ID: "entries_unreadable", State: Healthy, Fix: cmp.Or(first.Fix, fixLog), Since: first.Since,
			Text: fmt.Sprintf("%s unreadable: %s: %s", isOrAre(len(n.Bad), "key of the store", "keys of the store"), first.Key, first.Err)})
	}
	return all
}

// keysOf counts leases: one of two families has an entry for each that is not used.
func keysOf(entries []controller.EntryStatus) int {
	keys := map[string]bool{}
	for _, e := range entries {
		keys[e.Key] = true
	}
	return len(keys)
}

// isContest reports whether e is a lease that other nodes use in the place of this node's.
func isContest(e controller.EntryStatus) bool { return e.Reason == control.ReasonContested }

// ownerOf names the node of an entry.
func ownerOf(e controller.EntryStatus) string {
	if e.Name != "" {
		return e.Name
	}
	return e.Node.String()
}

// isOrAre is a number with its noun and verb.
func isOrAre(n int, one, many string) string {
	if n == 1 {
		return "1 " + one + " is"
	}
	return fmt.Sprintf("%d %s are", n, many)
}

// judgeEtcd says that the embedded etcd does not run, or that other hosts cannot reach it.
func judgeEtcd(e *Server) []Warning {
	if e != nil && e.Running && e.Closed != "" {
		return []Warning{{ID: "etcd_closed", State: Degraded, Text: "the embedded etcd serves this host alone: " + e.Closed, Fix: cmp.Or(e.Fix, fixLog)}}
	}
	if e == nil || e.Running || e.Since.IsZero() && e.Err == "" {
		return nil
	}
	return []Warning{{ID: "etcd_down", State: Degraded, Text: "the embedded etcd does not run: " + e.Err, Fix: cmp.Or(e.Fix, fixLog), Since: e.Since}}
}

// judgeEndpoints says at which TCP ports nobody answers.
func judgeEndpoints(endpoints []Endpoint) (all []Warning) {
	for _, e := range endpoints {
		if !e.Listening && e.Err != "" {
			all = append(all, Warning{ID: "endpoint_closed", State: Degraded, Fix: cmp.Or(e.Fix, fixLog), Since: e.Since,
				Text: fmt.Sprintf("%s does not listen at %s: %s", e.Name, e.Address, e.Err)})
		}
	}
	return all
}

// Short is a duration for people: 12s, 3m, 5h, 4d.
func Short(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(d, 0)/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
