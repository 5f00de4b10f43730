package etcdkeys

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

var keys = Keys{Prefix: "/coreos.com/network"}

// factsOf has a table with one node, which has a lease and a record, and the events that put and delete a record.
func factsOf(t *testing.T) (facts *Facts, node control.Lease, put, del func(public, value string) *mvccpb.Event) {
	facts = NewFacts(FactsConfig{Bad: func(key string, err error) { t.Errorf("%s: %v", key, err) }})
	node = control.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: netip.MustParseAddr("192.0.2.1")}
	u := control.Update{Reset: true, Leases: []control.Lease{node}}
	facts.Reset(u.Leases, control.NewSieve(control.Network{}, nil), 0)
	facts.Complete(&u, nil)
	event := func(kind mvccpb.Event_EventType) func(public, value string) *mvccpb.Event {
		return func(public, value string) *mvccpb.Event {
			return &mvccpb.Event{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte(keys.Nodes() + public), Value: []byte(value)}}
		}
	}
	return facts, node, event(mvccpb.PUT), event(mvccpb.DELETE)
}

// TestRecordsWithoutLease: however many there are, few are kept; those that are deleted leave nothing; and a node with a lease keeps its own.
func TestRecordsWithoutLease(t *testing.T) {
	facts, node, put, del := factsOf(t)
	junk := func(i int) string { return fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&0xff, i&0xff) }
	u, _ := facts.Apply(keys, []*mvccpb.Event{put("192.0.2.1", `{"v":1,"src4":"192.0.2.9"}`)})
	if len(u.Leases) != 1 || u.Leases[0].Facts.Source.String() != "192.0.2.9" {
		t.Fatalf("%+v, want the lease with its source", u)
	}
	const many = 2 * maxRecords
	for i := range many {
		if u, ok := facts.Apply(keys, []*mvccpb.Event{put(junk(i), `{"v":1}`)}); ok {
			t.Fatalf("record %d changes %+v", i, u)
		}
	}
	if n := len(facts.records); n > maxRecords+1 {
		t.Errorf("%d records are kept, want at most %d", n, maxRecords)
	}
	if facts.records[node.PublicIP] == nil {
		t.Error("the record of the node is not kept")
	}
	for i := range many {
		facts.Apply(keys, []*mvccpb.Event{del(junk(i), "")})
	}
	if n := len(facts.records); n != 1 {
		t.Errorf("%d records are left, want that of the node", n)
	}
}

// TestOmittedIsTold: leases that have no place are told again when a list has made an end of those before, and then only when there are twice as many.
func TestOmittedIsTold(t *testing.T) {
	facts, node, put, _ := factsOf(t)
	facts.Reset(nil, control.NewSieve(control.Network{}, nil), 1000)
	facts.Complete(&control.Update{Reset: true, Leases: []control.Lease{node}}, nil)
	if u, ok := facts.Apply(keys, []*mvccpb.Event{put("192.0.2.1", `{"v":1}`)}); !ok || u.Omitted != 1000 {
		t.Fatalf("told %+v, want 1000 omitted", u)
	}
	full := control.NewSieve(control.Network{}, nil)
	for range 8 { // there is room for as many of one subnet
		full.Add(&control.Lease{Subnet: netip.MustParsePrefix("10.5.9.0/24"), PublicIP: node.PublicIP})
	}
	facts.Reset(nil, full, 0)
	facts.Complete(&control.Update{Reset: true}, nil)
	var told []int
	for i := range 16 {
		kv := &mvccpb.KeyValue{Key: fmt.Appendf(nil, "%s10.5.9.0-24&fd10:5:0:%x::-64", keys.Subnets(), 1+i), CreateRevision: 7, ModRevision: 7,
			Value: fmt.Appendf(nil, `{"PublicIP":"192.0.2.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:02:40"}}`, 1+i)}
		if u, ok := facts.Apply(keys, []*mvccpb.Event{{Type: mvccpb.PUT, Kv: kv}}); ok {
			told = append(told, u.Omitted)
		}
	}
	if !slices.Equal(told, []int{1, 3, 7, 15}) {
		t.Errorf("told %v omitted leases, want 1, 3, 7, 15", told)
	}
}

// BenchmarkRecordsWithoutLease is what a hundred records of nodes without a lease cost beside 10 000 leases.
func BenchmarkRecordsWithoutLease(b *testing.B) {
	facts := NewFacts(FactsConfig{Bad: func(string, error) {}})
	u := control.Update{Reset: true}
	for i := range 10_000 {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		u.Leases = append(u.Leases, control.Lease{Subnet: subnet, PublicIP: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})})
	}
	facts.Reset(u.Leases, control.NewSieve(control.Network{}, nil), 0)
	facts.Complete(&u, nil)
	var events []*mvccpb.Event
	for i := range 100 {
		value := `{"id":"0123456789abcdef","name":"evil","boot":"0123456789abcdef","netns":3,"v":1}`
		events = append(events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: fmt.Appendf([]byte(keys.Nodes()), "198.18.0.%d", i), Value: []byte(value)}})
	}
	for b.Loop() {
		facts.Apply(keys, events)
	}
}
