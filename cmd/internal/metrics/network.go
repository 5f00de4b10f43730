package metrics

import (
	"strconv"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// perNetwork makes a family's read of one that adds the series of a network, whose first label is its name.
func perNetwork(read func(n *status.Network, add emit)) func(*view, emit) {
	return func(d *view, add emit) {
		for i := range d.Networks {
			n := &d.Networks[i]
			read(n, func(value float64, labels ...string) { add(value, append([]string{n.Name}, labels...)...) })
		}
	}
}

// perStore is perNetwork of what its store says.
func perStore(value func(s *control.StoreStatus) float64) func(*view, emit) {
	return perNetwork(func(n *status.Network, add emit) {
		if n.Store != nil {
			add(value(n.Store))
		}
	})
}

// counting is perNetwork of one number that the control plane has.
func counting(value func(n *status.Network) uint64) func(*view, emit) {
	return perNetwork(func(n *status.Network, add emit) { add(float64(value(n))) })
}

// networkFamilies are about the control plane of a network: its session, lease, store and parts.
func networkFamilies() []family {
	of := []string{network}
	return []family{
		{"ready", "1 if everything worked once in this session.", gauge, of, perNetwork(func(n *status.Network, add emit) { add(number(n.Ready)) })},
		{"sessions_total", "Sessions: another one begins when config or underlay change, or the device has gone.", counter, of, counting(func(n *status.Network) uint64 { return n.Sessions })},
		{"config_held", "1 if the network config in the store is not applied yet, or cannot be, or is missing.", gauge, of, perNetwork(func(n *status.Network, add emit) { add(number(n.ConfigHeld != nil)) })},
		{"config_repairs_total", "How often this daemon wrote the network config again that was gone from the store.", counter, of, counting(func(n *status.Network) uint64 { return n.ConfigRepairs })},
		{"lease_held", "1 if this node has a lease.", gauge, of, perNetwork(func(n *status.Network, add emit) { add(number(n.Lease != nil)) })},
		{"lease_expiry_timestamp_seconds", "When the lease ends unless it is renewed.", gauge, of, perNetwork(func(n *status.Network, add emit) {
			if n.Lease != nil && !n.Lease.Expires.IsZero() {
				add(seconds(n.Lease.Expires))
			}
		})},
		{"lease_renewals_total", "Renewals of the lease, by result.", counter, []string{network, "result"}, perNetwork(func(n *status.Network, add emit) {
			add(float64(n.Control.Renewals), "ok")
			add(float64(n.Control.RenewFails), "failed")
		})},
		{"lease_losses_total", "Leases lost: to somebody else, or because they ended.", counter, of, counting(func(n *status.Network) uint64 { return n.Control.Losses })},
		{"lease_mac_changes_total", "Changes of the own MAC, because another host publishes it.", counter, of, counting(func(n *status.Network) uint64 { return n.Control.MACChanges })},
		{"subnet_file_repairs_total", "How often the subnet file was written again after somebody had changed it.", counter, of, counting(func(n *status.Network) uint64 { return n.Control.FileRepairs })},
		{"withdrawn_routes_total", "Routes that were withdrawn because the lease of their subnet is refused now, or because they hid the store.", counter, of, counting(func(n *status.Network) uint64 { return n.Control.Withdrawn })},
		{"syncs_total", "Changes of the dataplane, by result.", counter, []string{network, "result"}, perNetwork(func(n *status.Network, add emit) {
			add(float64(n.Control.Syncs)-float64(n.Control.SyncFailures), "ok")
			add(float64(n.Control.SyncFailures), "failed")
		})},
		{"store_leases", "Leases in the store, by use.", gauge, []string{network, "state"}, perNetwork(func(n *status.Network, add emit) {
			add(float64(n.Control.Leases), "readable")
			add(float64(n.Control.Rejected), "refused")
			add(float64(n.Control.Bad), "unreadable")
		})},
		{"store_bad_updates_total", "Changes in the store that could not be used.", counter, of, counting(func(n *status.Network) uint64 { return n.Control.BadUpdates })},
		{"store_connected", "1 if the store answers.", gauge, of, perStore(func(s *control.StoreStatus) float64 { return number(s.Connected) })},
		{"store_last_answer_timestamp_seconds", "When the store answered last.", gauge, of, perNetwork(func(n *status.Network, add emit) {
			if n.Store != nil && !n.Store.LastAnswer.IsZero() {
				add(seconds(n.Store.LastAnswer))
			}
		})},
		{"store_unused_endpoints", "Endpoints of the store that answer and are not used: see the log.", gauge, of, perStore(func(s *control.StoreStatus) float64 { return float64(len(s.Unused)) })},
		{"store_revision", "Revision of the store, as last seen.", gauge, of, perStore(func(s *control.StoreStatus) float64 { return float64(s.Revision) })},
		{"part_ok", "1 if a part of the overlay has all its objects.", gauge, []string{network, "part"}, perNetwork(func(n *status.Network, add emit) {
			for _, p := range n.Parts {
				add(number(p.State == dataplane.StateOK), p.Name)
			}
		})},
		{"repairs_total", "Objects that others changed and that were put right.", counter, []string{network, "part", "kind"}, perNetwork(func(n *status.Network, add emit) {
			for _, r := range n.Repairs {
				add(float64(r.Count), r.Part, r.Kind)
			}
		})},
	}
}

func decimal(port uint16) string { return strconv.Itoa(int(port)) }
