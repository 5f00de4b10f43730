package etcd_test

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

const record1 = prefix + "/overlayd/nodes/192.0.0.1"

// TestNodeRecord: all its fields, and those of an earlier record of the same node that this version
// does not know stay; those that it does know do not.
func TestNodeRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.do(t, clientv3.OpPut(record1, `{"id":"id-1","name":"old","later":{"a":[1]},"src6":"fd00::9"}`))
	n, vteps := node(1)
	n.Source, n.Userspace = netip.MustParseAddr("10.0.0.5"), true
	n.Process = control.Process{Boot: "b00t", NetNS: 4026531840, Nonce: "n0nce", Start: time.Unix(1700000000, 5), Version: "v9"}
	s := c.open(t)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"id": "id-1", "name": "host-1", "boot": "b00t", "netns": 4026531840., "nonce": "n0nce", "start": "2023-11-14T22:13:20Z",
		"version": "v9", "src4": "10.0.0.5", "userspace": true, "state": "running", "v": 1., "later": map[string]any{"a": []any{1.}}}
	for range 2 {
		got := map[string]any{}
		text := c.all(t)[record1]
		if err := json.Unmarshal([]byte(text), &got); err != nil || !cmp.Equal(got, want) {
			t.Errorf("record %s: %v", text, cmp.Diff(want, got))
		}
		if l, err = s.Renew(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if name, lives, err := s.OtherNode(t.Context(), control.Node{ID: "id-2"}, n.PublicIP); !lives || name != "host-1" || err != nil {
		t.Errorf("live node %q: %t, %v", name, lives, err)
	}
}

// TestFactsOfNodes: what a node says of itself comes with its lease, and stays with it when the daemon
// has gone, until the lease is another.
func TestFactsOfNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	n, vteps := node(1)
	n.Source = netip.MustParseAddr("10.0.0.5")
	owner := c.open(t)
	l, err := owner.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, control.Lease{Subnet: netip.MustParsePrefix("10.5.99.0/24"), PublicIP: netip.MustParseAddr("192.0.0.9"), BackendType: "vxlan", Backend: l.Backend})
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	updates := watch(t, c.open(t))
	facts := factsTable{}
	want := func(what string, want control.NodeFacts) {
		t.Helper()
		facts.await(t, what, updates, l.Key(), want)
	}
	said := control.NodeFacts{V: 1, Source: n.Source, Name: n.Name}
	want("the first list", said)
	if got := facts["10.5.99.0-24"]; got != (control.NodeFacts{}) {
		t.Errorf("a flanneld's lease has %+v", got)
	}
	record := func(value string) { c.do(t, clientv3.OpPut(record1, value)) }
	record(`{"id":"id-1","name":"other","v":1,"src4":"10.0.0.6","src6":"fd00::6"}`)
	said = control.NodeFacts{V: 1, Source: netip.MustParseAddr("10.0.0.6"), SourceV6: netip.MustParseAddr("fd00::6"), Name: "other"}
	want("another record", said)
	record(`{"id":"id-1","src4":"10.0.0.7 "}`)
	eventually(t, "the bad record is logged", func() bool { return strings.Contains(log.String(), `src4 \"10.0.0.7 \" is not an IPv4 address`) })

	c.do(t, clientv3.OpDelete(record1)) // the daemon has ended
	c.Disconnect(t)
	put(t, c, control.Lease{Subnet: netip.MustParsePrefix("10.5.98.0/24"), PublicIP: netip.MustParseAddr("192.0.0.8"), BackendType: "vxlan", Backend: l.Backend})
	facts.await(t, "an update after the gap", updates, "10.5.98.0-24", control.NodeFacts{})
	if got := facts[l.Key()]; got != said {
		t.Errorf("without its record the lease has %+v, want %+v", got, said)
	}
	c.do(t, clientv3.OpPut(prefix+"/subnets/"+l.Key(), string(foreign(1))))
	want("a flanneld's lease in its place", control.NodeFacts{})
}

// factsTable is what a receiver makes of updates.
type factsTable map[string]control.NodeFacts

// await applies updates until a lease has these facts.
func (f factsTable) await(t *testing.T, what string, updates <-chan control.Update, key string, want control.NodeFacts) {
	t.Helper()
	for {
		u := receive(t, updates)
		for _, l := range u.Leases {
			f[l.Key()] = l.Facts
		}
		if got, ok := f[key]; ok && got == want {
			return
		}
		if !u.Reset && len(u.Leases)+len(u.Deleted)+len(u.Bad) == 0 {
			t.Errorf("%s: an update of nothing", what)
		}
	}
}

// foreign is the value of a lease that a flanneld with the address of node i writes.
func foreign(i int) []byte {
	n, _ := node(i)
	return control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: [6]byte{0x0e, 9}}}.Value()
}

// TestFactsBringNoLeaseBack: a record that changes says nothing of an entry that cannot be read.
func TestFactsBringNoLeaseBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	l := acquire(t, c.open(t), 1)
	updates := watch(t, c.open(t))
	receive(t, updates)
	c.do(t, clientv3.OpPut(prefix+"/subnets/"+l.Key(), "junk"))
	if u := receive(t, updates); len(u.Bad) != 1 {
		t.Fatalf("%+v, want a bad entry", u)
	}
	c.do(t, clientv3.OpPut(record1, `{"id":"id-1","v":1,"src4":"10.0.0.6"}`))
	c.PutLeased(t, "10.5.99.0-24", foreign(9))
	if u := receive(t, updates); len(u.Leases) != 1 || u.Leases[0].Key() != "10.5.99.0-24" {
		t.Errorf("%+v, want the other lease alone", u)
	}
}
