package probe

import (
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// realFaults are those that one host can have in the network of another, each with how to end it.
var realFaults = []struct {
	name   string
	hit    func(under *netnstest.NS, h *host) (undo func())
	state  status.ProbeState
	reason string
}{
	{"UDP port blocked", func(_ *netnstest.NS, h *host) func() { return h.drop("input", "udp dport 8472") }, status.ProbeDown, status.ReasonTunnelBlocked},
	{"path MTU 1400", func(_ *netnstest.NS, h *host) func() { return h.drop("input", "udp dport 8472 meta length > 1400") }, status.ProbeDegraded, status.ReasonPathMTU},
	{"ip_forward off", func(_ *netnstest.NS, h *host) func() {
		h.forward("0")
		return func() { h.forward("1") }
	}, status.ProbeDegraded, status.ReasonNoForwarding},
	{"link down", func(under *netnstest.NS, h *host) func() {
		port := fmt.Sprintf("port%d", h.i)
		under.Run("ip", "link", "set", port, "down")
		return func() { under.Run("ip", "link", "set", port, "up") }
	}, status.ProbeDown, status.ReasonHostDown},
}

// TestRealFaults: with real kernels, in both dataplanes at both ends and in both families, each fault is named by its own reason,
// and forgotten when it has gone. A peer that flanneld has made is told apart as well.
func TestRealFaults(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"kernel", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			under, hosts := newHosts(t, mode, "kernel", "userspace", "flannel")
			if mode == "userspace" { // without the right to a raw socket
				hosts[0].Must(func() error { return rtnl.SetSysctl("net/ipv4/ping_group_range", "0\t0") })
			}
			w := hosts[0].watch(hosts[1:]...)
			w.is(status.ProbeOK, "")
			for _, f := range realFaults {
				w.await("all is known", func(p *status.Probe) bool {
					return p.State == status.ProbeOK && p.MTU == status.MTUOK && p.Forwards == status.ForwardsYes && p.RTTMicros > 0 && !p.Last.IsZero()
				})
				var undo []func()
				for _, h := range hosts[1:] {
					undo = append(undo, f.hit(under, h))
				}
				w.is(f.state, f.reason)
				for _, undo := range undo {
					undo()
				}
				w.is(status.ProbeOK, "")
			}
			if s := w.Status(); s.Counts.Forged > 0 || s.Counts.Unsent > 0 {
				t.Errorf("%+v", s)
			}
			w.stop()
			checkFiltered(t, hosts)
		})
	}
}

// checkFiltered: of a host that drops ICMP and has never answered, nothing is said.
func checkFiltered(t *testing.T, hosts []*host) {
	t.Helper()
	for _, h := range hosts[1:] {
		for _, hook := range []string{"input", "output"} {
			h.drop(hook, "ip protocol icmp", "icmpv6 type { echo-request, echo-reply, time-exceeded }")
		}
	}
	w := hosts[0].watch(hosts[1:]...)
	w.is(status.ProbeUnknown, status.ReasonNeverAnswered)
	if s := w.Status(); s.Counts.Answered > 0 || w.log.Count("level=") > 0 {
		t.Errorf("%+v\n%s", s, w.log.String())
	}
}
