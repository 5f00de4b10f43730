package metrics

import (
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// dataplaneFamilies are the counters of the dataplane, whose names are those of status.Counters.
func dataplaneFamilies() []family {
	ways := func(name string) func(*view, emit) {
		return perNetwork(func(n *status.Network, add emit) {
			for _, way := range []string{"tx", "rx"} {
				if v, ok := n.Counters[way+"_"+name]; ok {
					add(float64(v), way)
				}
			}
		})
	}
	one := func(name string) func(*view, emit) {
		return perNetwork(func(n *status.Network, add emit) {
			if v, ok := n.Counters[name]; ok {
				add(float64(v))
			}
		})
	}
	of, directed := []string{network}, []string{network, "direction"}
	return []family{
		{"dataplane_info", "Which dataplane forwards; the value is 1.", gauge, []string{network, "mode"}, perNetwork(func(n *status.Network, add emit) {
			if n.Mode != "" {
				add(1, n.Mode)
			}
		})},
		{"mtu_bytes", "MTU of the overlay.", gauge, of, perNetwork(func(n *status.Network, add emit) {
			if n.MTU > 0 {
				add(float64(n.MTU))
			}
		})},
		{"dataplane_packets_total", "Inner packets that were forwarded.", counter, directed, ways("packets")},
		{"dataplane_bytes_total", "Bytes of the inner packets that were forwarded.", counter, directed, ways("bytes")},
		{"dataplane_dropped_packets_total", "Packets that were not forwarded, by reason.", counter, []string{network, "reason"}, perNetwork(func(n *status.Network, add emit) { drops(n.Counters, add) })},
		{"dataplane_write_errors_total", "Packets that the underlay refused; they are dropped packets too.", counter, of, one("tx_write_errors")},
		{"dataplane_superpackets_total", "Superpackets of the host that were split (tx), or that were handed to it (rx).", counter, directed, ways("superpackets")},
		{"dataplane_segments_total", "Packets that superpackets were split into (tx), or that were joined to them (rx).", counter, directed, ways("segments")},
		{"dataplane_batches_total", "Times that packets were sent or received together.", counter, directed, ways("batches")},
		{"dataplane_narrow_paths_total", "ICMP messages that were not believed because they told of a path MTU below --min-path-mtu.", counter, of, one("narrow_paths")},
		{"dataplane_offload_fallbacks_total", "Times that the kernel refused an offload.", counter, of, one("fallbacks")},
	}
}

// drops adds the dropped packets of each reason.
func drops(counters map[string]uint64, add emit) {
	for name, v := range counters {
		if reason, ok := strings.CutPrefix(name, "drops_"); ok {
			add(float64(v), reason)
		}
	}
}
