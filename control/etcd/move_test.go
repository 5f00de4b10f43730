package etcd_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane"
)

var moveSubnet = netip.MustParsePrefix("10.5.7.0/24")

const moveRecord = prefix + "/overlayd/nodes/192.0.0.1"

// userspace is node id after its public IP has become that of node i from that of node 1, with the MAC
// that is derived from it.
func userspace(id string, i int) (control.Node, []dataplane.VTEP) {
	was, _ := node(1)
	n, vteps := node(i)
	n.ID, n.Previous, n.Former = id, []netip.Prefix{moveSubnet}, []netip.Addr{was.PublicIP}
	vteps[0].MAC = dataplane.MAC(n.PublicIP, 1)
	return n, vteps
}

func acquireUserspace(t *testing.T, s *etcd.Store, id string, i int) control.Lease {
	t.Helper()
	n, vteps := userspace(id, i)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// putOld writes the lease of the earlier address by hand.
func putOld(t *testing.T, c *cluster) control.Lease {
	t.Helper()
	n, vteps := userspace("id-1", 1)
	l := control.Lease{Subnet: moveSubnet, PublicIP: n.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
	put(t, c, l)
	return l
}

// TestMoveLeavesNothing: no entry, record or etcd lease of the earlier address stays.
func TestMoveLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	acquireUserspace(t, s, "id-1", 1)
	for i := 2; i < 5; i++ {
		if l := acquireUserspace(t, s, "id-1", i); l.Subnet != moveSubnet {
			t.Errorf("acquired %s at address %d", l.Subnet, i)
		}
		if all, leases := c.all(t), c.leases(t); len(all) != 3 || leases != 2 {
			t.Errorf("%d etcd leases, keys %v, want config, entry and record", leases, all)
		}
	}
}

// TestMoveBesideRecord: a record that nobody keeps alive is not a sign of life. The own one is deleted.
func TestMoveBesideRecord(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, value string
		leased      bool
		taken       bool
		gone        bool
	}{
		{"another's", `{"id":"id-2","name":"host-2"}`, true, false, false},
		{"another's without an etcd lease", `{"id":"id-2","name":"host-2"}`, false, true, false},
		{"own", `{"id":"id-1","name":"host-1"}`, true, true, true},
		{"junk", `{`, true, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			putOld(t, c)
			var opts []clientv3.OpOption
			if tt.leased {
				grant, err := c.client.Grant(t.Context(), 60)
				if err != nil {
					t.Fatal(err)
				}
				opts = append(opts, clientv3.WithLease(grant.ID))
			}
			c.do(t, clientv3.OpPut(moveRecord, tt.value, opts...))
			if l := acquireUserspace(t, c.open(t), "id-1", 2); (l.Subnet == moveSubnet) != tt.taken {
				t.Errorf("acquired %s, want the earlier entry: %v", l.Subnet, tt.taken)
			}
			if kv := c.do(t, clientv3.OpGet(moveRecord)).Get().Kvs; (len(kv) == 0) != tt.gone || !tt.gone && string(kv[0].Value) != tt.value {
				t.Errorf("the record became %v", kv)
			}
		})
	}
}

// TestMoveAndOwnerReturns: another node gives its sign of life under the earlier address
// after it was looked for and before the entry is written.
func TestMoveAndOwnerReturns(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	old := putOld(t, c)
	before := c.entry(t, old.Key())
	sprung := make(chan struct{})
	c.proxy.setTrap(prefix+"/subnets/"+old.Key(), func(p *pair, request []byte) {
		close(sprung)
		grant, err := c.client.Grant(t.Context(), 60)
		if err != nil {
			t.Error(err)
			return
		}
		c.do(t, clientv3.OpPut(moveRecord, `{"id":"id-2","name":"host-2"}`, clientv3.WithLease(grant.ID)))
		seen := c.applied(t)
		p.server.Write(request)
		eventually(t, "etcd has seen the request", func() bool { return c.applied(t) > seen })
	})
	if l := acquireUserspace(t, c.open(t), "id-1", 2); l.Subnet == moveSubnet {
		t.Errorf("acquired %s, which is another's again", l.Subnet)
	}
	select {
	case <-sprung:
	default:
		t.Error("the entry was not written at all")
	}
	if after := c.entry(t, old.Key()); after != before {
		t.Errorf("the other's entry became %+v", after)
	}
}

// TestPublishedOfOneTag: of two nodes whose IDs have one tag neither has the other's lease. A node whose address has changed has its own
// while it remembers the address or the subnet, or as long as its record lasts.
func TestPublishedOfOneTag(t *testing.T) {
	t.Parallel()
	const id, other = "id-5156", "id-70347"
	if etcdrpc.LeaseTag(id) != etcdrpc.LeaseTag(other) {
		t.Fatal("the IDs have two tags")
	}
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var stores []*etcd.Store
	var had []control.Lease
	for i, id := range []string{id, other} {
		s := c.open(t)
		n, vteps := node(i + 1)
		n.ID = id
		l, err := s.Acquire(t.Context(), n, vteps)
		if err != nil {
			t.Fatal(err)
		}
		stores, had = append(stores, s), append(had, l)
	}
	published := func(what string, at int, remember func(n *control.Node), want ...control.Lease) {
		t.Helper()
		n, _ := node(at)
		if n.ID = id; remember != nil {
			remember(&n)
		}
		got, err := c.open(t).Published(t.Context(), n)
		if err != nil || !slices.EqualFunc(got, want, func(a, b control.Lease) bool { return a.Key() == b.Key() }) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	address := func(n *control.Node) { n.Former = []netip.Addr{had[0].PublicIP} }
	subnet := func(n *control.Node) { n.Previous = []netip.Prefix{had[0].Subnet} }
	published("at its address", 1, nil, had[0])
	published("elsewhere, with a record", 3, nil, had[0])
	for _, s := range stores {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range had {
		if name, lives, err := c.open(t).OtherNode(t.Context(), control.Node{ID: "id-9"}, l.PublicIP); lives || err != nil {
			t.Fatalf("the record of %s is still there: %s, %v", l.PublicIP, name, err)
		}
	}
	published("at its address, without a record", 1, nil, had[0])
	published("elsewhere, with its address", 3, address, had[0])
	published("elsewhere, with its subnet", 3, subnet, had[0])
	published("elsewhere, and nothing is known", 3, nil)
}

// TestPublishedAfterExchange: a host that has come to the address of another one has its own lease still,
// and not that of the other one. Without a lease of its own it has that of its address.
func TestPublishedAfterExchange(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var had [3]control.Lease
	for i := 1; i <= 2; i++ {
		n, vteps := node(i)
		l, err := c.open(t).Acquire(t.Context(), n, vteps)
		if err != nil {
			t.Fatal(err)
		}
		had[i] = l
	}
	for _, tt := range []struct {
		id   string
		at   int
		want control.Lease
	}{
		{"id-1", 1, had[1]}, {"id-1", 2, had[1]}, {"id-1", 3, had[1]}, {"id-2", 1, had[2]}, {"id-3", 1, had[1]}, {"", 1, had[1]},
	} {
		n, _ := userspace(tt.id, tt.at)
		got, err := c.open(t).Published(t.Context(), n)
		if err != nil || len(got) != 1 || got[0].Key() != tt.want.Key() {
			t.Errorf("node %q at %d has published %v, %v, want %s", tt.id, tt.at, got, err, tt.want.Key())
		}
	}
}

// TestMoveToTheAddressOfADeadHost: that one's lease is its own still, though its address, and so the MAC that is derived
// from it, is this host's by now.
func TestMoveToTheAddressOfADeadHost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	log := c.shortLived()
	dead, s := c.open(t), c.open(t)
	theirs := mustDerive(t, dead, 1, "10.5.3.0/24")
	dead.Close()
	n, vteps := node(2)
	vteps[0].MAC = dataplane.MAC(n.PublicIP, 1)
	if _, err := s.Acquire(t.Context(), n, vteps); err != nil {
		t.Fatal(err)
	}
	n.Previous, n.Former = []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}, []netip.Addr{n.PublicIP}
	n.PublicIP = theirs.PublicIP
	vteps = []dataplane.VTEP{{Addr: n.PublicIP, MAC: theirs.Backend.MAC, VNI: 1}}
	var l control.Lease
	eventually(t, "the dead host's record is gone", func() (ok bool) {
		var err error
		l, err = s.Acquire(t.Context(), n, vteps)
		return err == nil
	})
	if l.Subnet != n.Previous[0] || l.Backend != theirs.Backend {
		t.Fatalf("acquired %+v", l)
	}
	drain(t, s)
	for end := time.Now().Add(ownDue); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		l = renew(t, s, l)
		if keys := c.Keys(t); !slices.Contains(keys, theirs.Key()) {
			t.Fatalf("keys %v, without %s:\n%s", keys, theirs.Key(), log)
		}
	}
}

// ownDue is how long an own entry beside the lease stays at most, and some time more.
const ownDue = 4 * time.Second
