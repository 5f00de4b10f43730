package probe

import (
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/encap"
)

// facts are what texts about peers need besides the peer.
type facts struct {
	Tunnel bool   // packets of the overlay are encapsulated
	Port   uint16 // UDP port of VXLAN
	MTU    int    // of the overlay, in bytes
}

// explain says why the state of a peer is what it is, and what to do.
func (q *peer) explain(f *facts) (text, fix string) {
	switch q.reason {
	case status.ReasonHostDown:
		if q.checks[under].refused {
			return fmt.Sprintf("a host on the way, or this one, finds no host at %s", q.vtep), "start that host, or repair the network between"
		}
		return fmt.Sprintf("it answers no more, neither through the overlay nor at %s", q.vtep), "start that host, or repair the network between"
	case status.ReasonTunnelBlocked:
		return fmt.Sprintf("its host answers at %s, but not through the overlay", q.vtep), f.unblock()
	case status.ReasonNoAnswer:
		return fmt.Sprintf("it answers no more through the overlay, and its host never answered at %s: it is not known which of them fails", q.vtep),
			"see whether that host is up; if it is, " + f.unblock()
	case status.ReasonPathMTU:
		return q.explainMTU(f)
	case status.ReasonNoForwarding:
		return "its host answers, but no longer forwards to its pods", "on that host: sysctl -w " + forwardingSysctl(q.subnet)
	case status.ReasonNeverAnswered:
		return fmt.Sprintf("it has never answered, neither through the overlay nor at %s: its host is down, or drops ICMP", q.vtep),
			"see whether that host is up; let ICMP pass if it is to be watched"
	case status.ReasonNotSent, status.ReasonNoSocket:
		return q.explainUnsent()
	}
	return "", ""
}

// unblock says what lets packets of the overlay pass.
func (f *facts) unblock() string {
	if !f.Tunnel {
		return "see on both hosts which firewall drops it"
	}
	return fmt.Sprintf("see whether overlayd runs there; let UDP port %d pass between the hosts in both directions, and with direct routes packets of pods", f.Port)
}

func (q *peer) explainMTU(f *facts) (text, fix string) {
	text = fmt.Sprintf("packets of %d bytes do not arrive, small ones do", f.MTU)
	if q.pathMTU > 0 {
		text += fmt.Sprintf(": a router says that the path takes %d", q.pathMTU)
	}
	outer := f.MTU
	if f.Tunnel {
		outer += encap.Overhead(q.vtep)
	}
	return text, fmt.Sprintf("let the path carry packets of %d bytes, or give Backend in the network config a smaller MTU", outer)
}

// explainUnsent says why this host cannot ask.
func (q *peer) explainUnsent() (text, fix string) {
	for k := range q.checks {
		if err := q.checks[k].unsent; err != nil {
			to := q.target(kind(k))
			if fix = fixOf(err); err.byRoute() {
				fix = fmt.Sprintf("see which route or rule of this host refuses it, and whether the host has its overlay address: ip route get %s, ip rule, ip addr", to)
			}
			return fmt.Sprintf("this host cannot ask %s: %v", to, err), fix
		}
	}
	return "this host cannot ask", ""
}

// forwardingSysctl is what makes a host forward packets of the family of a subnet.
func forwardingSysctl(subnet netip.Prefix) string {
	if subnet.Addr().Is6() {
		return "net.ipv6.conf.all.forwarding=1"
	}
	return "net.ipv4.ip_forward=1"
}
