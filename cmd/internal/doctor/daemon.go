package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fixes"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane"
)

// noSubnet is why a check has nothing to look for; todo follows.
const noSubnet = "the subnets and the network of this host are not known: "

// noNetwork is why nothing of an overlay can be checked, though a daemon answers.
const noNetwork = "the daemon serves no network yet"

// checkDaemon looks at what is wrong as a whole.
func checkDaemon(o *overlay) []Result {
	d := o.scene.Daemon
	if d == nil {
		text := "no daemon answers"
		if o.scene.Absent != nil {
			text = o.scene.Absent.Error()
		}
		if o.scene.isMute() {
			return fail(text, fixes.Of(nil, "", o.scene.Absent))
		}
		return fail(text, "start overlayd, such as by systemctl start overlayd; its log says why it ended")
	}
	if found := warned(d, "", func(id string) bool {
		return id == "networks_unknown" || id == "not_ready" || id == "no_session" || id == "not_synced" || strings.HasPrefix(id, "part_") || strings.HasPrefix(id, "config_") || id == "etcd_down" || id == "endpoint_closed" || id == "etcd_closed" || id == "log_blocked" ||
			id == dataplane.WarnFought || id == "file_not_written"
	}); found != nil {
		return found
	}
	name := strings.TrimSpace("overlayd " + d.Process.Version)
	return ok(fmt.Sprintf("%s answers: pid %d, for %s", name, d.Process.PID, status.Short(d.At.Sub(d.Process.Start))))
}

// warned returns what the daemon warns of under some ids; of one network, unless that is empty.
func warned(d *status.Daemon, network string, is func(id string) bool) (found []Result) {
	for _, w := range d.Warnings {
		if !is(w.ID) || network != "" && w.Network != network {
			continue
		}
		r := Result{State: Fail, Text: w.Text, Fix: w.Fix}
		if w.State == status.Healthy {
			r.State = Warn
		}
		if network == "" && w.Network != "" {
			r.Text = "network " + w.Network + ": " + r.Text
		}
		found = append(found, r)
	}
	return found
}

// warned is what the daemon warns of for this overlay.
func (o *overlay) warned(ids ...string) []Result {
	if o.scene.Daemon == nil {
		return nil
	}
	return warned(o.scene.Daemon, o.name, func(id string) bool { return slices.Contains(ids, id) })
}

func checkStore(o *overlay) []Result {
	if o.status == nil {
		return unknown(o.untold())
	}
	if found := o.warned("store_unreachable", "store_refuses", "endpoint_unused", "entries_unreadable"); found != nil {
		return found
	}
	s := o.status.Store
	if s == nil || s.LastAnswer.IsZero() {
		return unknown("the store has not answered yet")
	}
	return ok(fmt.Sprintf("%s answers", strings.TrimSpace(s.Kind+" "+s.Endpoint)))
}

// checkCertificates looks for certificates that end soon.
func checkCertificates(o *overlay) []Result {
	d := o.scene.Daemon
	switch {
	case d == nil:
		return unknown(o.untold())
	case len(d.Networks) == 0:
		return unknown(noNetwork)
	}
	if found := warned(d, "", func(id string) bool { return strings.HasPrefix(id, "certificate_") }); found != nil {
		return found
	}
	if len(d.Networks[0].Certificates) == 0 {
		return ok("the daemon needs none")
	}
	first := slices.MinFunc(d.Networks[0].Certificates, func(a, b status.Certificate) int { return a.Expires.Compare(b.Expires) })
	return ok(fmt.Sprintf("the first to end, on %s, is in %s", first.Expires.UTC().Format(time.DateOnly), first.File))
}

func checkLease(o *overlay) []Result {
	if o.status == nil {
		return unknown(o.untold())
	}
	if found := o.warned("no_lease", "lease_lost", "lease_contested", "lease_not_renewed", "leases_refused"); found != nil {
		return found
	}
	if o.status.Lease == nil && !o.isServed() {
		return unknown(o.untold())
	}
	if o.status.Lease == nil {
		return fail("this node has no lease", "the log of the daemon says why")
	}
	return ok("this node has " + joined(o.status.Lease.Subnets))
}

// checkClones looks for another host that says that it is this node.
func checkClones(o *overlay) []Result {
	if o.status == nil {
		return unknown(o.untold())
	}
	if found := o.warned("clone"); found != nil {
		return found
	}
	if s := o.status.Store; s == nil || s.LastAnswer.IsZero() {
		return unknown("the store has not answered yet")
	}
	return ok("no other host says that it is this node")
}

// checkPeers looks at how the peers answer; at one alone if only that matters.
func checkPeers(o *overlay) (all []Result) {
	if o.status == nil {
		return unknown(o.untold())
	}
	if name := o.scene.Peer; name != "" && o.isServed() {
		for _, n := range status.FindPeers([]status.Network{*o.status}, name).Networks {
			for i := range n.Peers {
				all = append(all, onePeer(&n.Peers[i]))
			}
		}
		return all
	}
	all = o.peersWarned()
	switch {
	case all != nil:
		return all
	case !o.isServed():
		return unknown(o.untold())
	}
	return ok(fmt.Sprintf("nothing is wrong with %d of them", len(o.status.Peers)))
}

// peersWarned is what the daemon warns of about peers, but for path_mtu, which has a check of its own.
func (o *overlay) peersWarned() []Result {
	return warned(o.scene.Daemon, o.name, func(id string) bool {
		return id == "probes" || strings.HasPrefix(id, "peers_") && id != "peers_"+status.ReasonPathMTU
	})
}

func onePeer(p *status.Peer) Result {
	_, why, fix := p.Why()
	r := Result{State: OK, Text: p.Title() + " is " + string(p.State), Fix: fix}
	if why != "" {
		r.Text = p.Title() + ": " + why
	}
	switch {
	case !p.Works():
		r.State = Fail
	case p.Probe == nil || p.Probe.State == status.ProbeUnknown:
		r.State = Unknown
	default:
		r.Text = fmt.Sprintf("%s answers in %.2f ms", p.Title(), float64(p.Probe.RTTMicros)/1000)
	}
	return r
}

func joined[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, ", ")
}
