package etcd_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const twoFamilies = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"},"EnableIPv6":true,"IPv6Network":"fd05::/48"}`

// TestHalfReservation: a reservation that anybody has written with one of the two subnets of a node moves it out of the other one.
func TestHalfReservation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoFamilies))
	s := c.open(t)
	l := acquire(t, s, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	forged := reserved(1, l.Subnet.String(), "fd05:0:0:99::/64")
	c.PutRaw(t, forged.Key(), forged.Value())
	again := acquire(t, c.open(t), 1, l.Subnet, l.IPv6Subnet) // a restart, with subnet.env
	if again.Key() != l.Key() {
		t.Errorf("the node had %s, and has %s after a restart", l.CIDRs(), again.CIDRs())
	}
}

// TestSharedEtcdLease: an operator has written all entries again under one etcd lease. One that must give way takes all others with it.
func TestSharedEtcdLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoFamilies))
	s := c.open(t)
	l := acquire(t, s, 1)
	n2, v2 := node(2)
	other := control.Lease{Subnet: netip.MustParsePrefix("10.5.60.0/24"), IPv6Subnet: netip.MustParsePrefix("fd05:0:0:60::/64"), PublicIP: n2.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(v2[0].Addr, 1)}}
	n3, v3 := node(3)
	overlapping := control.Lease{Subnet: l.Subnet, IPv6Subnet: netip.MustParsePrefix("fd05:0:0:99::/64"), PublicIP: n3.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(v3[0].Addr, 1)}}
	c.Expire(t, l.Key())
	grant, err := c.client.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []control.Lease{overlapping, l, other} {
		c.do(t, clientv3.OpPut(prefix+"/subnets/"+e.Key(), string(e.Value()), clientv3.WithLease(grant.ID)))
	}
	if _, err = s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if keys := c.Keys(t); !slices.Contains(keys, other.Key()) || !slices.Contains(keys, overlapping.Key()) {
		t.Errorf("entries of others are gone: left is %v", keys)
	}
}

// TestListJudgesAsNodes: lease list shows what nodes make of entries.
func TestListJudgesAsNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	n, vteps := node(66)
	half := control.Lease{Subnet: netip.MustParsePrefix("10.5.0.0/17"), PublicIP: n.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(vteps[0].Addr, 1)}}
	put(t, c, half)
	s := c.open(t)
	nn, vv := node(1)
	nn.Lengths = &control.Lengths{} // as a daemon has
	l, err := s.Acquire(t.Context(), nn, vv)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := s.Entries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch e.Key {
		case l.Key():
			if e.State != etcd.EntryUsed {
				t.Errorf("the lease of node 1, which all daemons use, is shown as %s: %s", e.State, e.Why)
			}
		case half.Key():
			if e.State != etcd.EntryRefused {
				t.Errorf("the /17, which all daemons refuse, is shown as %s", e.State)
			}
		}
	}
}

// TestNewcomerOfManyEntries: 256 entries of a newcomer's address, which it cannot use and leaves alone, keep everybody from seeing its lease.
func TestNewcomerOfManyEntries(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	n, _ := node(2)
	var puts []clientv3.Op
	for i := range 256 {
		key := fmt.Sprintf("10.5.%d.0-24&fd00:0:0:%x::-64", 1+i/8, i+1)
		puts = append(puts, clientv3.OpPut(prefix+"/subnets/"+key, fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null}`, n.PublicIP)))
		if len(puts) == 64 {
			if _, err := c.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
				t.Fatal(err)
			}
			puts = nil
		}
	}
	w := watching(t, c.open(t))
	l1 := acquire(t, c.open(t), 1)
	w.sees(t, l1)
	l2 := acquire(t, c.open(t), 2)
	again := watching(t, c.open(t))
	again.sees(t, l1)
	timeout := time.After(5 * time.Second)
	for {
		select {
		case u := <-w.updates:
			if slices.ContainsFunc(u.Leases, func(l control.Lease) bool { return l.Key() == l2.Key() }) {
				return
			}
		case <-timeout:
			_, later := again.leases[l2.Key()]
			t.Errorf("nobody is told the lease %s of a host that joins: by its event, or by a list %v", l2.CIDRs(), later)
			return
		}
	}
}

// TestSieveOfTheConfigInForce: a config that nobody applies, or that stood for a moment, decides which leases are looked at.
func TestSieveOfTheConfigInForce(t *testing.T) {
	t.Parallel()
	const big = `{"Network":"10.0.0.0/8","SubnetMax":"10.127.0.0","Backend":{"Type":"vxlan"}}`
	c := newCluster(t)
	c.SetConfig(t, []byte(big))
	const many = 2100
	for i := 0; i < many; i += 100 {
		var puts []clientv3.Op
		for j := range 100 {
			k := i + j
			l := control.Lease{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(200 + k>>8), byte(k), 0}), 24), PublicIP: netip.AddrFrom4([4]byte{172, 16, byte(k >> 8), byte(k)}), BackendType: "vxlan"}
			l.Backend = control.VTEPData{VNI: 1, MAC: dataplane.MAC(l.PublicIP, 1)}
			puts = append(puts, clientv3.OpPut(prefix+"/subnets/"+l.Key(), string(l.Value())))
		}
		if _, err := c.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s := c.open(t)
	n3, v3 := node(3)
	var err error
	if n3.Network, err = s.Network(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), n3, v3); err != nil { // as a daemon does
		t.Fatal(err)
	}
	w := watching(t, s)
	l1 := acquire(t, c.open(t), 1)
	w.sees(t, l1)
	// A mistake, held by everybody for 30 s, and put right at once. Meanwhile a connection broke.
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
	c.Disconnect(t)
	for reset := false; !reset; {
		u := receive(t, w.updates)
		reset = u.Reset
	}
	c.SetConfig(t, []byte(big))
	l2 := acquire(t, c.open(t), 2) // joins by the right config
	seen := make(chan bool, 1)
	go func() {
		deadline := time.After(8 * time.Second)
		for {
			select {
			case u, ok := <-w.updates:
				if !ok || slices.ContainsFunc(u.Leases, func(l control.Lease) bool { return l.Key() == l2.Key() }) {
					seen <- ok
					return
				}
			case <-deadline:
				seen <- false
				return
			}
		}
	}()
	if !<-seen {
		t.Errorf("the lease %s of a host that has joined under the right config is not seen for 8 s (nor until the next list, in ten minutes)", l2.CIDRs())
	}
}
