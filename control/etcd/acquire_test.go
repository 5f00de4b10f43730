package etcd_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

func TestWhatIsWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1, netip.MustParsePrefix("10.5.34.0/24"))
	want := map[string]string{
		prefix + "/config":                   config,
		prefix + "/subnets/10.5.34.0-24":     `{"PublicIP":"192.0.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}`,
		prefix + "/overlayd/nodes/192.0.0.1": `{"id":"id-1","name":"host-1","state":"running","v":1}`,
	}
	check := func(when string) {
		t.Helper()
		got := c.all(t)
		for k, v := range got {
			if want[k] != v {
				t.Errorf("%s: key %s has %s, want %s", when, k, v, want[k])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d keys, want %d: %v", when, len(got), len(want), got)
		}
	}
	check("after Acquire")
	l, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	check("after Renew")
	if left := time.Until(l.Expires); left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("renewed lease lasts %s, want 24h", left)
	}
	if err := s.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{prefix + "/config": config}
	check("after Release")
	if n := c.leases(t); n != 0 {
		t.Errorf("%d etcd leases left after Release", n)
	}
}

// TestThousandAcquirers is acceptance line 9: each has a connection of its own.
func TestThousandAcquirers(t *testing.T) {
	n := 1000
	if testing.Short() || raced {
		n = 100
	}
	c := newCluster(t)
	c.cfg.Endpoints = []string{c.url()}
	c.SetConfig(t, []byte(`{"Network":"10.16.0.0/12"}`))
	leases := make([]control.Lease, n)
	begin := time.Now()
	var wg sync.WaitGroup
	var again atomic.Int64
	for i := range n {
		s := c.open(t)
		wg.Go(func() {
			node, vteps := node(i)
			retry := pace.Backoff{Low: 100 * time.Millisecond, High: 10 * time.Second}
			for {
				var err error
				if leases[i], err = s.Acquire(t.Context(), node, vteps); err == nil {
					return
				}
				if !strings.Contains(err.Error(), "does not answer") || time.Since(begin) > 3*hang {
					t.Errorf("node %d: %v", i, err)
					return
				}
				again.Add(1) // a busy machine: the Controller tries again too
				pace.Sleep(t.Context(), retry.Next(), nil)
			}
		})
	}
	wg.Wait()
	t.Logf("%d acquirers took %s, %d tried again", n, time.Since(begin), again.Load())
	owner := map[netip.Prefix]int{}
	for i, l := range leases {
		if other, ok := owner[l.Subnet]; ok {
			t.Errorf("nodes %d and %d both have %s", i, other, l.Subnet)
		}
		owner[l.Subnet] = i
	}
	if keys := c.Keys(t); len(keys) != n {
		t.Errorf("%d leases in etcd, want %d", len(keys), n)
	}
	// Who did not see etcd's answer could not take the etcd lease back either: it expires.
	if got := c.leases(t); got < 2*n || got > 2*n+2*int(again.Load()) {
		t.Errorf("%d etcd leases, want %d: a lease and a sign of life per node; %d tried again", got, 2*n, again.Load())
	}
}

// TestAcquireExactlyAllSubnets makes every acquirer lose races.
func TestAcquireExactlyAllSubnets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/18","SubnetMin":"10.5.0.0"}`)) // 64 subnets
	var wg sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		s := c.open(t)
		wg.Go(func() {
			node, vteps := node(i)
			_, errs[i] = s.Acquire(t.Context(), node, vteps)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if keys := c.Keys(t); len(keys) != 64 {
		t.Errorf("%d leases, want 64", len(keys))
	}
	n, vteps := node(64)
	if _, err := c.open(t).Acquire(t.Context(), n, vteps); !errors.Is(err, control.ErrNoSubnet) {
		t.Errorf("one more: %v, want ErrNoSubnet", err)
	}
	if got := c.leases(t); got != 2*64+1 {
		t.Errorf("%d etcd leases, want %d", got, 2*64+1)
	}
}

func TestAcquireAgainLeavesNoEtcdLeases(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	first := acquire(t, c.open(t), 1)
	for range 5 { // the earlier ones still live: as after kill -9
		l := acquire(t, c.open(t), 1)
		if l.Subnet != first.Subnet || l.CreateRevision != first.CreateRevision {
			t.Errorf("resumed %s created at %d, want %s at %d", l.Subnet, l.CreateRevision, first.Subnet, first.CreateRevision)
		}
	}
	if got := c.leases(t); got != 2 {
		t.Errorf("%d etcd leases, want 2", got)
	}
}

func TestAcquireAmongJunk(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	for key, value := range map[string]string{
		"garbage": "x", "10.5.1.0-24hi": "{}", "../10.5.2.0-24": "{}", "\xff\x00": "{}",
		"10.5.3.0-24": "x", // junk in a key that can be read: the subnet is not free
		"10.5.4.0-24": `{"PublicIP":"192.0.0.2","PublicIPv6":null}`,
	} {
		c.PutRaw(t, key, []byte(value))
	}
	c.do(t, clientv3.OpPut(prefix+"/subnetsX/10.5.9.0-24", `{"PublicIP":"192.0.0.1","PublicIPv6":null}`))
	before := c.all(t)
	l := acquire(t, c.open(t), 1, netip.MustParsePrefix("10.5.3.0/24"))
	if l.Subnet.String() == "10.5.3.0/24" {
		t.Error("acquired a subnet whose key is there")
	}
	after := c.all(t)
	for k, v := range before {
		if after[k] != v {
			t.Errorf("key %q was changed to %q", k, after[k])
		}
	}
}

// TestReplyLost loses the reply to the transaction that creates the entry, the
// request itself, or both for now: the request reaches etcd only after the node has
// got its subnet by another one. It has one subnet each time.
func TestReplyLost(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		sprung func(c *cluster, p *pair, request []byte)
	}{
		{"reply", func(c *cluster, p *pair, request []byte) {
			p.client.Close()
			p.server.Write(request)
			eventually(t, "the lost transaction takes effect", func() bool { return len(c.Keys(t)) == 1 })
		}},
		{"request", func(*cluster, *pair, []byte) {}},
		{"late", func(c *cluster, p *pair, request []byte) {
			p.client.Close()
			eventually(t, "the node has a subnet", func() bool { return len(c.Keys(t)) == 1 })
			before := c.applied(t)
			p.server.Write(request)
			eventually(t, "etcd has seen the late request", func() bool { return c.applied(t) > before })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			done := make(chan struct{})
			c.proxy.setTrap(prefix+"/subnets/10.5.", func(p *pair, request []byte) {
				defer close(done)
				tt.sprung(c, p, request)
			})
			l := acquire(t, c.open(t), 1)
			<-done
			if l.Facts.V != control.FactsVersion {
				t.Errorf("facts %+v", l.Facts)
			}
			if keys := c.Keys(t); len(keys) != 1 || keys[0] != l.Key() {
				t.Errorf("keys %v, want %s alone", keys, l.Key())
			}
			if got := c.leases(t); got != 2 {
				t.Errorf("%d etcd leases, want 2", got)
			}
		})
	}
}

// TestCloseDuringAcquire closes the Store while the node's record is being written: the
// record does not outlive it. Close gives etcd 300 ms for that, so that a busy machine
// may need another attempt.
func TestCloseDuringAcquire(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	for i := range 5 {
		s := c.open(t)
		n, vteps := node(i)
		record := prefix + "/overlayd/nodes/" + n.PublicIP.String()
		done := make(chan struct{})
		c.proxy.setTrap(record, func(p *pair, request []byte) {
			defer close(done)
			before := c.applied(t)
			var wg sync.WaitGroup
			wg.Go(func() { _ = s.Close() })
			time.Sleep(50 * time.Millisecond) // a head start, not a synchronisation: any order must do
			p.server.Write(request)
			_, _ = io.Copy(p.server, p.client) // until Close ends the connection
			wg.Wait()
			eventually(t, "etcd has seen the request", func() bool { return c.applied(t) > before })
		})
		if _, err := s.Acquire(t.Context(), n, vteps); err == nil {
			t.Error("acquired from a closed store")
		}
		<-done
		if kvs := c.do(t, clientv3.OpGet(record)).Get().Kvs; len(kvs) == 0 {
			return
		}
		t.Logf("attempt %d left the record", i)
	}
	t.Error("the record outlives the Store")
}

// TestCloseDuringRenew closes the Store while a renewal writes the node's record again and again: it does not outlive the Store, unless
// etcd has not answered within the time that Close gives it, as on a busy machine.
func TestCloseDuringRenew(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	inTime := 0
	for range 10 {
		s := c.open(t)
		l := acquire(t, s, 1)
		var renewals sync.WaitGroup
		renewals.Go(func() {
			for {
				if _, err := s.Renew(t.Context(), l); err != nil {
					return
				}
				if _, err := c.client.Delete(t.Context(), record1); err != nil {
					t.Error(err)
					return
				}
			}
		})
		eventually(t, "the record is written again", func() bool {
			kvs := c.do(t, clientv3.OpGet(record1)).Get().Kvs
			return len(kvs) == 1 && kvs[0].CreateRevision > l.ModRevision
		})
		begin := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		late := time.Since(begin) >= etcdrpc.CloseTimeout
		renewals.Wait()
		if late {
			continue
		}
		inTime++
		if kvs := c.do(t, clientv3.OpGet(record1)).Get().Kvs; len(kvs) != 0 {
			t.Fatalf("the record outlives the Store: %s", kvs[0].Value)
		}
	}
	if inTime == 0 {
		t.Errorf("etcd did not once answer within %s", etcdrpc.CloseTimeout)
	}
}

func TestTwoLiveNodesWithOnePublicIP(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	a := c.open(t)
	l := acquire(t, a, 1)
	clone, vteps := node(1)
	clone.ID, clone.Name = "id-clone", "host-clone"
	b := c.open(t)
	_, err := b.Acquire(t.Context(), clone, vteps)
	if !errors.Is(err, control.ErrTaken) || !strings.Contains(err.Error(), "host-1") {
		t.Errorf("clone: %v, want ErrTaken that names host-1", err)
	}
	if now, err := a.Renew(t.Context(), l); err != nil || now.Subnet != l.Subnet {
		t.Errorf("Renew beside a clone: %v", err)
	}
	if got := c.leases(t); got != 2 {
		t.Errorf("%d etcd leases, want 2", got)
	}
	// The record outlives its TTL as long as the node lives, and not longer.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	taken, err := b.Acquire(t.Context(), clone, vteps)
	if err != nil || taken.Subnet != l.Subnet {
		t.Errorf("clone after the node's clean stop: %v %v, want %s", taken.Subnet, err, l.Subnet)
	}
}

// TestAcquireCedes: an entry of two families that an earlier run has left, a part of which
// an older entry holds. The node keeps the other part.
func TestAcquireCedes(t *testing.T) {
	t.Parallel()
	const older, own = "10.5.5.0-24&fd10:6:0:5::-64", "10.5.5.0-24&fd10:6:0:6::-64"
	for _, tt := range []struct {
		name         string
		first        func(c *cluster, other control.Lease) // what stands there before the own entry
		cedes        bool
		reservedLast bool
	}{
		{"to a lease", func(c *cluster, other control.Lease) { c.PutLeased(t, older, other.Value()) }, true, false},
		{"not to junk", func(c *cluster, _ control.Lease) { c.PutRaw(t, older, []byte("junk")) }, false, false},
		{"not to a reservation", func(c *cluster, other control.Lease) { c.PutRaw(t, older, other.Reservation().Value()) }, false, false},
		{"not as a reservation", func(c *cluster, other control.Lease) { c.PutLeased(t, older, other.Value()) }, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.SetConfig(t, []byte(dualConfig))
			n, vteps := node(1)
			l := control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
			tt.first(c, control.Lease{PublicIP: netip.MustParseAddr("192.0.0.9"), BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: encap.MAC{2, 9}}})
			put := c.PutLeased
			if tt.reservedLast {
				put = c.PutRaw
			}
			put(t, own, l.Value())
			got := acquire(t, c.open(t), 1)
			if (got.Key() != own) != tt.cedes || got.IPv6Subnet.String() != "fd10:6:0:6::/64" || len(c.Keys(t)) != 2 {
				t.Errorf("acquired %s, entries %v", got.Key(), c.Keys(t))
			}
		})
	}
}

// TestAcquireCedesToOneOfTheSameAge: two entries that overlap in one family were written in one transaction, as
// by a restore. The node that comes first cedes, and the other one, which may serve its subnets, keeps them.
func TestAcquireCedesToOneOfTheSameAge(t *testing.T) {
	t.Parallel()
	keys := []string{"10.5.5.0-24&fd10:6:0:5::-64", "10.5.5.0-24&fd10:6:0:6::-64"}
	for cedes := range keys {
		c := newCluster(t)
		c.SetConfig(t, []byte(dualConfig))
		var puts []clientv3.Op
		for i, key := range keys {
			n, vteps := node(i)
			l := control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
			grant, err := c.client.Grant(t.Context(), 60)
			if err != nil {
				t.Fatal(err)
			}
			puts = append(puts, clientv3.OpPut(prefix+"/subnets/"+key, string(l.Value()), clientv3.WithLease(grant.ID)))
		}
		c.do(t, clientv3.OpTxn(nil, puts, nil))
		if got := acquire(t, c.open(t), cedes); got.Subnet.String() == "10.5.5.0/24" {
			t.Errorf("node %d acquired %s, which overlaps that of the other", cedes, got.Key())
		}
		if got := acquire(t, c.open(t), 1-cedes); got.Key() != keys[1-cedes] {
			t.Errorf("node %d acquired %s, want %s", 1-cedes, got.Key(), keys[1-cedes])
		}
	}
}

// TestAcquireWhileEtcdIsRestored: while an acquisition looks for older entries that overlap its own, all entries are put back
// from a backup, and with them one that had gone when it was written.
func TestAcquireWhileEtcdIsRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(dualConfig))
	var key string
	c.proxy.setTrap(prefix+"/subnets/10.5.", func(p *pair, request []byte) {
		c.proxy.setTrap(prefix+"/subnets/", func(p *pair, request []byte) {
			key = c.putBackBeside(t, 9)
			p.server.Write(request)
		})
		p.server.Write(request)
		eventually(t, "the entry", func() bool { return len(c.Keys(t)) == 1 })
	})
	if l := acquire(t, c.open(t), 1); key == "" || overlapsIn4(l.Key(), key) {
		t.Errorf("acquired %s, which %s overlaps", l.Key(), key)
	}
}

// TestRenewAfterRestore: all entries were put back from a backup, and with them one that overlaps an own one.
func TestRenewAfterRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(dualConfig))
	s := c.open(t)
	l := acquire(t, s, 1)
	key := c.putBackBeside(t, 9)
	if now, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("renewed %s (%v), which %s overlaps", now.Key(), err, key)
	}
	if again := acquire(t, s, 1); overlapsIn4(again.Key(), key) {
		t.Errorf("then acquired %s", again.Key())
	}
}

// dualConfig is a network of both families.
const dualConfig = `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`

// putBackBeside writes the only entry there is again, in one transaction with one of node i that has the same IPv4 subnet,
// and returns the key of that.
func (c *cluster) putBackBeside(t *testing.T, i int) (key string) {
	t.Helper()
	own := c.Keys(t)[0]
	e := c.entry(t, own)
	v4, _, _ := strings.Cut(own, "&")
	key = v4 + "&fd10:6:0:ffff::-64"
	n, vteps := node(i)
	other := control.Lease{PublicIP: n.PublicIP, BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
	grant, err := c.client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	name := prefix + "/subnets/"
	c.do(t, clientv3.OpDelete(name+own))
	c.do(t, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(name+own, e.value, clientv3.WithLease(clientv3.LeaseID(e.lease))),
		clientv3.OpPut(name+key, string(other.Value()), clientv3.WithLease(grant.ID))}, nil))
	return key
}

// overlapsIn4 reports whether two keys have the same IPv4 subnet.
func overlapsIn4(a, b string) bool {
	v4, _, _ := strings.Cut(a, "&")
	return strings.HasPrefix(b, v4+"&")
}

// TestAcquireOutlastsTheLease: etcd answers whether another entry overlaps the new one only after that has expired.
func TestAcquireOutlastsTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(dualConfig))
	c.cfg.LeaseTTL = time.Second
	c.proxy.setTrap(prefix+"/subnets/10.5.", func(p *pair, request []byte) {
		c.proxy.setTrap(prefix+"/subnets/", func(p *pair, request []byte) {
			eventually(t, "the entry expires", func() bool { return len(c.Keys(t)) == 0 })
			p.server.Write(request)
		})
		p.server.Write(request)
		eventually(t, "the entry", func() bool { return len(c.Keys(t)) == 1 })
	})
	if l := acquire(t, c.open(t), 1); !time.Now().Before(l.Expires) {
		t.Errorf("acquired a lease that ended %s ago", time.Since(l.Expires))
	}
}

// TestReservationBySpelling: an operator may write an address as he likes.
func TestReservationBySpelling(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.PutRaw(t, "10.5.5.0-24", []byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"2001:DB8:0:0::0001"}`))
	ip := netip.MustParseAddr("2001:db8::1")
	l, err := c.open(t).Acquire(t.Context(), control.Node{ID: "id-1", PublicIPv6: ip},
		[]dataplane.VTEP{{Addr: ip, MAC: encap.MAC{2, 6}, VNI: 1}})
	if err != nil || l.Key() != "10.5.5.0-24" || l.Handle != 0 {
		t.Errorf("acquired %+v, %v", l, err)
	}
}
