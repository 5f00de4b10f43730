package metrics

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

// Peers says which peers have series of their own.
type Peers string

// The values of Peers.
const (
	PeersOn  Peers = "on"  // all
	PeersTop Peers = "top" // maxTop of each network: those that do not work, then those with the longest round trip
	PeersOff Peers = "off" // none
)

// maxTop bounds the series of a network of any size.
const maxTop = 100

// peerFamilies count peers by state, and show some of them.
func peerFamilies(which Peers) []family {
	states := []controller.PeerState{controller.PeerUp, controller.PeerDirect, controller.PeerRefused, controller.PeerFailed, controller.PeerKept, controller.PeerUnknown}
	all := []family{
		{"peers", "Subnets of peers, by state.", gauge, []string{network, "state"}, perNetwork(func(n *status.Network, add emit) {
			counts := map[controller.PeerState]int{}
			for i := range n.Peers {
				counts[n.Peers[i].State]++
			}
			for _, s := range states {
				add(float64(counts[s]), string(s))
			}
		})},
		{"probed_peers", "Subnets of peers, by what probes say.", gauge, []string{network, "state"}, perNetwork(probedPeers)},
	}
	for _, c := range []struct {
		name, help string
		value      func(status.ProbeCounts) uint64
	}{
		{"probes_sent_total", "Probes sent.", func(c status.ProbeCounts) uint64 { return c.Sent }},
		{"probes_answered_total", "Probes answered, also late.", func(c status.ProbeCounts) uint64 { return c.Answered }},
		{"probes_lost_total", "Probes without an answer in time.", func(c status.ProbeCounts) uint64 { return c.Lost }},
		{"probes_unsent_total", "Probes that this host refused to send.", func(c status.ProbeCounts) uint64 { return c.Unsent }},
		{"probes_forged_total", "Answers to nothing that was asked, from the wrong host, or with the wrong content.", func(c status.ProbeCounts) uint64 { return c.Forged }},
		{"probe_state_changes_total", "Changes of what probes say of a peer.", func(c status.ProbeCounts) uint64 { return c.Changes }},
	} {
		all = append(all, family{c.name, c.help, counter, []string{network}, perNetwork(func(n *status.Network, add emit) {
			if n.Probes != nil {
				add(float64(c.value(n.Probes.Counts)))
			}
		})})
	}
	if which == PeersOff {
		return all
	}
	labels := []string{network, "peer", "subnet"}
	each := func(value func(p *status.Peer) (float64, bool)) func(*view, emit) {
		return func(d *view, add emit) {
			for i, peers := range d.shown {
				for _, p := range peers {
					if v, ok := value(&p); ok {
						add(v, d.Networks[i].Name, p.Name, p.Subnet.String())
					}
				}
			}
		}
	}
	return append(append(all,
		family{"peer_up", "1 if packets reach a peer, as far as this host knows.", gauge, labels, each(func(p *status.Peer) (float64, bool) { return number(p.Works()), true })},
		family{"peer_rtt_seconds", "Moving average of the round trip through the overlay.", gauge, labels, each(func(p *status.Peer) (float64, bool) {
			return float64(rtt(p)) / 1e6, rtt(p) > 0
		})},
		family{"peer_loss_ratio", "Part of the last probes through the overlay that were lost.", gauge, labels, each(func(p *status.Peer) (float64, bool) {
			if p.Probe == nil || p.Probe.Tries == 0 {
				return 0, false
			}
			return float64(p.Probe.Lost) / float64(p.Probe.Tries), true
		})},
	), trafficFamilies()...)
}

// trafficFamilies are what the userspace dataplane counts for each VTEP. Of a VTEP with several subnets there is one series.
func trafficFamilies() (all []family) {
	for _, c := range []struct {
		name, help string
		value      func(t *status.PeerTraffic) uint64
	}{
		{"peer_tx_bytes_total", "Bytes of inner packets sent to a VTEP.", func(t *status.PeerTraffic) uint64 { return t.TxBytes }},
		{"peer_rx_bytes_total", "Bytes of inner packets accepted from a VTEP.", func(t *status.PeerTraffic) uint64 { return t.RxBytes }},
	} {
		all = append(all, family{c.name, c.help, counter, []string{network, "peer", "vtep"}, func(d *view, add emit) {
			for i, peers := range d.shown {
				seen := map[*status.PeerTraffic]bool{nil: true}
				for _, p := range peers {
					if !seen[p.Traffic] {
						seen[p.Traffic] = true
						add(float64(c.value(p.Traffic)), d.Networks[i].Name, p.Name, p.VTEP.String())
					}
				}
			}
		}})
	}
	return all
}

func probedPeers(n *status.Network, add emit) {
	if n.Probes == nil {
		return
	}
	counts := map[status.ProbeState]int{}
	for i := range n.Probes.Peers {
		counts[n.Probes.Peers[i].State]++
	}
	for _, s := range []status.ProbeState{status.ProbeOK, status.ProbeDegraded, status.ProbeDown, status.ProbeUnknown} {
		add(float64(counts[s]), string(s))
	}
}

// shown are the peers of a network with series of their own: one for each subnet, those that are refused have none.
func shown(n *status.Network, which Peers) []status.Peer {
	if which == PeersOff {
		return nil
	}
	seen := map[netip.Prefix]bool{} // a subnet that changes hands can be there twice, and a series not
	peers := slices.DeleteFunc(n.AllPeers(), func(p status.Peer) bool {
		again := seen[p.Subnet]
		seen[p.Subnet] = true
		return again || p.State == controller.PeerRefused
	})
	if which != PeersTop || len(peers) <= maxTop {
		return peers
	}
	slices.SortStableFunc(peers, func(a, b status.Peer) int {
		return cmp.Or(cmp.Compare(number(a.Works()), number(b.Works())), cmp.Compare(rtt(&b), rtt(&a)))
	})
	return peers[:maxTop]
}

// rtt is the smoothed round trip of a peer in microseconds; 0: none is known.
func rtt(p *status.Peer) int64 {
	if p.Probe == nil {
		return 0
	}
	return p.Probe.SmoothMicros
}
