package statustext

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// network prints one network.
func (p printer) network(n *status.Network) {
	fmt.Fprintln(p)
	if n.Name != "" {
		fmt.Fprintf(p, "network %s\n", safe(n.Name))
	}
	for _, f := range p.facts(n) {
		fmt.Fprintf(p, "%-10s %s\n", f.Key, f.Text)
	}
	p.peers(n.AllPeers())
	p.entries("LEASE NOT USED", n.Rejected)
	if p.wide {
		p.entries("CANNOT BE READ", n.Bad)
	}
}

// Fact is one line about a network.
type Fact struct{ Key, Text string }

// Facts says in a few lines how a network is, but for its peers.
func Facts(n *status.Network, now time.Time) []Fact { return printer{now: now}.facts(n) }

func (p printer) facts(n *status.Network) []Fact {
	all := []Fact{
		{"lease", p.lease(n)},
		{"store", p.store(n)},
		{"etcd", p.etcd(n.Etcd)},
		{"dataplane", p.dataplane(n)},
		{"underlay", underlay(n.Underlay)},
		{"parts", parts(n)},
		{"repairs", p.repairs(n)},
		{"traffic", traffic(n)},
	}
	for i := range all {
		all[i].Text = safe(all[i].Text)
	}
	return slices.DeleteFunc(all, func(f Fact) bool { return f.Text == "" })
}

func (p printer) lease(n *status.Network) string {
	l := n.Lease
	if l == nil {
		return "none"
	}
	var vteps []string
	for _, v := range l.VTEPs {
		text := v.Public.String()
		if v.MAC != "" && p.wide {
			text += " (MAC " + v.MAC + ")"
		}
		vteps = append(vteps, text)
	}
	text := joined(l.Subnets) + " as " + strings.Join(vteps, ", ")
	if !l.Expires.IsZero() {
		text += ", renewed before it ends in " + status.Short(l.Expires.Sub(p.now))
	}
	return text
}

func (p printer) store(n *status.Network) string {
	s := n.Store
	if s == nil {
		return ""
	}
	text := strings.TrimSpace(s.Kind + " " + s.Endpoint)
	if s.Revision > 0 {
		text += fmt.Sprintf(", revision %d", s.Revision)
	}
	if s.LastAnswer.IsZero() {
		return text + ", has not answered yet"
	}
	return text + ", answered " + p.ago(s.LastAnswer)
}

func (p printer) etcd(e *status.Server) string {
	switch {
	case e == nil:
		return ""
	case e.Running:
		return fmt.Sprintf("runs beside this daemon: pid %d, for %s, start %d", e.PID, status.Short(p.now.Sub(e.Since)), e.Starts)
	}
	return "does not run: " + e.Err
}

func (p printer) dataplane(n *status.Network) string {
	if n.SessionStart.IsZero() {
		return ""
	}
	text := cmp.Or(n.Mode, "none")
	if n.VNI > 0 {
		text += fmt.Sprintf(", VNI %d, UDP port %d", n.VNI, n.Port)
	}
	text += fmt.Sprintf(", MTU %d", n.MTU)
	if n.SourceCheck != "" {
		text += ", source check " + n.SourceCheck
	}
	if len(n.Offloads) > 0 {
		text += ", offloads " + strings.Join(n.Offloads, " ")
	}
	text += ", for " + status.Short(p.now.Sub(n.SessionStart))
	if n.Sessions > 1 {
		text += fmt.Sprintf(" (session %d)", n.Sessions)
	}
	return text
}

func underlay(u *status.Underlay) string {
	if u == nil {
		return ""
	}
	text := fmt.Sprintf("%s, MTU %d", u.Interface, u.MTU)
	for _, e := range u.Ends {
		text += ", " + e.Local.String()
		if e.Public != e.Local {
			text += " (published: " + e.Public.String() + ")"
		}
	}
	return text
}

func parts(n *status.Network) string {
	var all []string
	for _, part := range n.Parts {
		all = append(all, part.Name+" "+string(part.State))
	}
	return strings.Join(all, ", ")
}

// repairs are those of the last ten minutes.
func (p printer) repairs(n *status.Network) string {
	var all []string
	for _, part := range n.Parts {
		for _, o := range part.Objects {
			if o.Lately > 0 {
				all = append(all, fmt.Sprintf("%s: %s, last %s", part.Name, count(int(o.Lately), o.Kind), p.ago(o.LastRepair)))
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "; ") + " (in 10 minutes, of what others had changed)"
}

// traffic is what the dataplane has counted since it was opened.
func traffic(n *status.Network) string {
	if len(n.Counters) == 0 {
		return ""
	}
	text := fmt.Sprintf("sent %s, received %s", volume(n, "tx"), volume(n, "rx"))
	var drops []string
	for name, v := range n.Counters {
		if reason, ok := strings.CutPrefix(name, "drops_"); ok && v > 0 {
			drops = append(drops, fmt.Sprintf("%s %d", reason, v))
		}
	}
	if len(drops) == 0 {
		return text
	}
	slices.Sort(drops)
	return text + ", dropped " + strings.Join(drops, ", ")
}

func volume(n *status.Network, way string) string {
	return fmt.Sprintf("%s (%s)", count(int(n.Counters[way+"_packets"]), "packet"), bytes(n.Counters[way+"_bytes"]))
}
