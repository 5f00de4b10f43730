package etcd

import (
	"context"
	"net/netip"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// EntryState is what nodes make of an entry.
type EntryState string

// The states of an entry.
const (
	EntryUsed       EntryState = "used"
	EntryRefused    EntryState = "refused"    // the subnets, or those of a family: Entry.Why is what nodes log
	EntryReserved   EntryState = "reserved"   // it never expires; its node may use it
	EntryUnreadable EntryState = "unreadable" // Entry.Why is what nodes log
	EntryUnknown    EntryState = "unknown"    // there is no network config by which to judge
)

// The values of Entry.Alive.
const (
	Alive        = "yes"
	Dead         = "no"      // an overlayd, which gives no sign of life
	AliveUnknown = "unknown" // a flanneld never gives one
)

// judgeEntries says of each entry what nodes make of it, and whether its node lives.
func (s *Store) judgeEntries(ctx context.Context, entries []Entry) error {
	names := map[netip.Addr]string{}
	_, err := s.rpc.List(ctx, "list node records", etcdrpc.PrefixRange(s.keys.Nodes()), 0, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if ip, ok := s.keys.ParseNodeKey(kv.Key); ok && string(kv.Key) == s.keys.Node(ip) { // below it clones ask
				r, _ := etcdkeys.ParseRecord(kv.Value)
				names[ip] = printable(r.Name)
			}
		}
	})
	if err != nil {
		return err
	}
	refused, known := s.refusals(ctx, entries)
	for i := range entries {
		e := &entries[i]
		why := refused[e.Key]
		switch {
		case e.Err != nil:
			e.State, e.Why = EntryUnreadable, e.Err.Error()
		case why != "":
			e.State, e.Why = EntryRefused, why
		case e.Reserved:
			e.State = EntryReserved
		case !known:
			e.State = EntryUnknown
		default:
			e.State = EntryUsed
		}
		name, lives := names[e.Lease.Identity()]
		switch v := e.Lease.VTEP(!e.Lease.PublicIP.IsValid()); {
		case lives:
			e.Node, e.Alive = name, Alive
		case dataplane.IsDerived(v.MAC, v.Addr, v.VNI):
			e.Alive = Dead
		default:
			e.Alive = AliveUnknown
		}
	}
	return nil
}

// refusals returns why leases are refused, by key, from the view of a node without a lease. known is false if there is no
// network config to judge by.
func (s *Store) refusals(ctx context.Context, entries []Entry) (refused map[string]string, known bool) {
	n, err := s.Network(ctx)
	if err != nil {
		return nil, false
	}
	r := control.NewRIB(n)
	r.Lengths = &control.Lengths{}
	u := control.Update{Reset: true}
	for _, e := range entries {
		if e.Err == nil {
			u.Leases = append(u.Leases, e.Lease)
		}
	}
	r.Apply(u)
	refused = map[string]string{}
	_, rejections := r.Peers(onlooker(n))
	for _, x := range rejections {
		if refused[x.Key] != "" {
			refused[x.Key] += "; "
		}
		refused[x.Key] += x.Err.Error()
	}
	return refused, true
}

// onlooker is a node that reaches every VTEP, with addresses that no node has (RFC 5737, RFC 3849).
func onlooker(n control.Network) control.Lease {
	data := control.VTEPData{VNI: n.Backend.VNI, MAC: encap.MAC{2, 0xff, 0xff, 0xff, 0xff, 0xff}}
	return control.Lease{BackendType: n.Backend.Type, PublicIP: netip.MustParseAddr("198.51.100.255"), PublicIPv6: netip.MustParseAddr("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
		Backend: data, BackendV6: data}
}
