package etcd_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// put writes an entry under a new etcd lease, as another daemon does.
func put(t *testing.T, c *cluster, l control.Lease) {
	t.Helper()
	c.PutLeased(t, l.Key(), l.Value())
}

// TestRenewAfter is what Renew does about an entry that somebody has touched.
func TestRenewAfter(t *testing.T) {
	t.Parallel()
	const junk = "{"
	foreign := func(l control.Lease) control.Lease {
		other, vteps := node(2)
		l.PublicIP, l.Backend.MAC = other.PublicIP, vteps[0].MAC
		return l
	}
	tests := []struct {
		name   string
		touch  func(t *testing.T, c *cluster, l control.Lease)
		lost   bool // ErrLost, else the entry ends up with our value
		writes bool // Renew writes the entry
	}{
		{"nothing", func(*testing.T, *cluster, control.Lease) {}, false, false},
		{"deletion", func(t *testing.T, c *cluster, l control.Lease) { c.DeleteRaw(t, l.Key()) }, false, true},
		{"expiry", func(t *testing.T, c *cluster, l control.Lease) { c.Expire(t, l.Key()) }, false, true},
		{"junk", func(t *testing.T, c *cluster, l control.Lease) { c.PutRaw(t, l.Key(), []byte(junk)) }, false, true},
		{"junk and expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.PutRaw(t, l.Key(), []byte(junk))
			if _, err := c.client.Revoke(t.Context(), clientv3.LeaseID(l.Handle)); err != nil {
				t.Fatal(err)
			}
		}, false, true},
		{"reserved", func(t *testing.T, c *cluster, l control.Lease) { c.PutRaw(t, l.Key(), l.Value()) }, false, false},
		{"reserved by public IP", func(t *testing.T, c *cluster, l control.Lease) {
			c.PutRaw(t, l.Key(), l.Reservation().Value())
		}, false, true},
		{"own value restored from a backup", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			put(t, c, l)
		}, false, false},
		{"another node", func(t *testing.T, c *cluster, l control.Lease) { put(t, c, foreign(l)) }, true, false},
		{"another node after expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			put(t, c, foreign(l))
		}, true, false},
		{"another node's reservation", func(t *testing.T, c *cluster, l control.Lease) {
			c.PutRaw(t, l.Key(), foreign(l).Value())
		}, true, false},
		{"flanneld with the same public IP", func(t *testing.T, c *cluster, l control.Lease) {
			l.Backend.MAC[5]++
			put(t, c, l)
		}, true, false},
		{"junk in a new entry", func(t *testing.T, c *cluster, l control.Lease) {
			c.DeleteRaw(t, l.Key())
			c.PutRaw(t, l.Key(), []byte(junk))
		}, false, true},
		{"junk in a new entry after expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			c.PutRaw(t, l.Key(), []byte(junk))
		}, false, true},
		{"junk in a new entry with an etcd lease", func(t *testing.T, c *cluster, l control.Lease) {
			c.DeleteRaw(t, l.Key())
			c.PutLeased(t, l.Key(), []byte(junk))
		}, true, false},
		{"a lease of all the network after deletion", func(t *testing.T, c *cluster, l control.Lease) {
			c.PutRaw(t, "10.5.0.0-16", foreign(l).Value())
			c.DeleteRaw(t, l.Key())
		}, false, true},
		{"an overlapping lease after expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			c.PutRaw(t, l.Subnet.Addr().String()+"-25", foreign(l).Value())
		}, true, false},
		{"junk over an overlapping lease after expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			c.PutLeased(t, l.Subnet.Addr().String()+"-25", foreign(l).Value())
			c.PutRaw(t, l.Subnet.Addr().String()+"-25", []byte(junk))
		}, true, false},
		{"junk that overlaps after expiry", func(t *testing.T, c *cluster, l control.Lease) {
			c.Expire(t, l.Key())
			c.PutRaw(t, l.Subnet.Addr().String()+"-25", []byte(junk))
		}, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { renewAfter(t, tt.touch, tt.lost, tt.writes) })
	}
}

func renewAfter(t *testing.T, touch func(*testing.T, *cluster, control.Lease), lost, writes bool) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	touch(t, c, l)
	before := c.entry(t, l.Key())
	got, err := s.Renew(t.Context(), l)
	after := c.entry(t, l.Key())
	if wrote := after.revision != before.revision; wrote != writes {
		t.Errorf("Renew wrote the entry: %v, want %v", wrote, writes)
	}
	if lost {
		if !errors.Is(err, control.ErrLost) {
			t.Errorf("Renew: %v, want ErrLost", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Renew: %v", err)
	}
	if after != (entry{string(l.Value()), got.CreateRevision, got.ModRevision, got.Handle}) {
		t.Errorf("entry %+v does not fit %+v", after, got)
	}
	if got.Facts != l.Facts || got.Facts.V == 0 {
		t.Errorf("facts %+v, want %+v", got.Facts, l.Facts)
	}
	if got.Handle == 0 && !got.Expires.IsZero() || got.Handle != 0 && got.Expires.Before(time.Now().Add(50*time.Second)) {
		t.Errorf("expires %s", got.Expires)
	}
	if again, err := s.Renew(t.Context(), got); err != nil || again.ModRevision != got.ModRevision {
		t.Errorf("second Renew: %v, at %d, want %d", err, again.ModRevision, got.ModRevision)
	}
}

// TestRenewSpoiltBesideAnother: while the entry of two subnets was junk, another node has put back its own entry, which has
// one of them.
func TestRenewSpoiltBesideAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`))
	s := c.open(t)
	l := acquire(t, s, 1)
	other, vteps := node(2)
	theirs := control.Lease{Subnet: l.Subnet, IPv6Subnet: netip.MustParsePrefix("fd10:6:0:ffff::/64"), PublicIP: other.PublicIP,
		BackendType: "vxlan", Backend: control.VTEPData{VNI: 1, MAC: vteps[0].MAC}}
	c.PutRaw(t, l.Key(), []byte("{"))
	put(t, c, theirs)
	if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("renewed %+v, %v, want ErrLost", got, err)
	}
	if got, _ := c.GetRaw(t, theirs.Key()); string(got) != string(theirs.Value()) {
		t.Errorf("the other entry is now %s", got)
	}
}

// TestReleaseOfSharedEtcdLease: an operator has put another node's entry on the same one.
func TestReleaseOfSharedEtcdLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	c.do(t, clientv3.OpPut(prefix+"/subnets/"+key(200), string(value(2)), clientv3.WithLease(clientv3.LeaseID(l.Handle))))
	if err := s.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := c.Keys(t); len(got) != 1 || got[0] != key(200) {
		t.Errorf("entries %v, want the other node's", got)
	}
	if got := c.leases(t); got != 1 {
		t.Errorf("%d etcd leases, want the other entry's", got)
	}
}

// TestEarlierProcessShares is what Acquire says of an earlier process of this node
// that is still there.
func TestEarlierProcessShares(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	a, b := c.open(t), c.open(t)
	first := acquire(t, a, 1)
	second := acquire(t, b, 1)
	got, err := a.Renew(t.Context(), first)
	if err != nil || got.Key() != second.Key() || got.Handle != second.Handle {
		t.Fatalf("the earlier process renews %+v, %v", got, err)
	}
	if again, err := b.Renew(t.Context(), second); err != nil || again.ModRevision != second.ModRevision {
		t.Errorf("the later one renews %+v, %v", again, err)
	}
}

// TestPausedPastTTL is a process that is stopped while its lease and its sign of
// life expire and another node gets its subnet, the only one.
func TestPausedPastTTL(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.7.0","SubnetMax":"10.5.7.0"}`))
	a, b := c.open(t), c.open(t)
	l := acquire(t, a, 1)
	c.Expire(t, l.Key())
	acquire(t, b, 2)
	want, _ := c.GetRaw(t, l.Key())
	if _, err := a.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("Renew: %v, want ErrLost", err)
	}
	if err := a.Release(t.Context(), l); err != nil {
		t.Errorf("Release of a lost lease: %v", err)
	}
	if got, _ := c.GetRaw(t, l.Key()); string(got) != string(want) {
		t.Errorf("the new owner's entry is now %s, want %s", got, want)
	}
	if n, vteps := node(1); true {
		if _, err := a.Acquire(t.Context(), n, vteps); !errors.Is(err, control.ErrNoSubnet) {
			t.Errorf("Acquire after the loss: %v, want ErrNoSubnet", err)
		}
	}
}

// TestCloneTakesOverWhilePaused is the case that the values cannot tell apart: a
// node with the same public IP has the same MAC too.
func TestCloneTakesOverWhilePaused(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	a, b := c.open(t), c.open(t)
	l := acquire(t, a, 1)
	record := c.do(t, clientv3.OpGet(prefix+"/overlayd/nodes/192.0.0.1")).Get().Kvs[0]
	if _, err := c.client.Revoke(t.Context(), clientv3.LeaseID(record.Lease)); err != nil { // paused for longer than NodeTTL
		t.Fatal(err)
	}
	clone, vteps := node(1)
	clone.ID, clone.Name = "id-clone", "host-clone"
	taken, err := b.Acquire(t.Context(), clone, vteps)
	if err != nil || taken.Subnet != l.Subnet {
		t.Fatalf("clone: %v %v, want %s taken over in place", taken.Subnet, err, l.Subnet)
	}
	if _, err := a.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("Renew: %v, want ErrLost", err)
	}
	n, vteps := node(1)
	if _, err := a.Acquire(t.Context(), n, vteps); !errors.Is(err, control.ErrTaken) {
		t.Errorf("Acquire: %v, want ErrTaken", err)
	}
	if now := c.entry(t, l.Key()); now.lease != taken.Handle {
		t.Error("the clone lost the entry")
	}
}

func TestRecordIsKeptAlive(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	s := c.open(t)
	acquire(t, s, 1)
	key := prefix + "/overlayd/nodes/192.0.0.1"
	lease := c.do(t, clientv3.OpGet(key)).Get().Kvs[0].Lease
	for begin := time.Now(); time.Since(begin) < 2500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		if kvs := c.do(t, clientv3.OpGet(key)).Get().Kvs; len(kvs) != 1 || kvs[0].Lease != lease {
			t.Fatalf("record gone after %s", time.Since(begin))
		}
	}
	if _, err := c.client.Revoke(t.Context(), clientv3.LeaseID(lease)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record is back", func() bool { return len(c.do(t, clientv3.OpGet(key)).Get().Kvs) == 1 })
}

// TestRenewWhatWasWrittenInDoubt: the reply to a write was lost, and nobody has looked whether an older entry has one of the
// two subnets. The next renewal does.
func TestRenewWhatWasWrittenInDoubt(t *testing.T) {
	t.Parallel()
	for _, older := range []bool{false, true} {
		c := newCluster(t)
		c.SetConfig(t, []byte(twoOfEach))
		s := c.open(t)
		l := mustDerive(t, s, 1, "10.5.3.0/24", "fd05:0:0:3::/64")
		other, vteps := node(2)
		rival := l
		rival.PublicIP, rival.Backend.MAC, rival.IPv6Subnet = other.PublicIP, vteps[0].MAC, netip.MustParsePrefix("fd05:0:0:2::/64")
		c.DeleteRaw(t, l.Key())
		if older {
			put(t, c, rival)
		}
		put(t, c, l) // by another etcd lease, as the write in doubt has
		if _, err := s.Renew(t.Context(), l); errors.Is(err, control.ErrLost) != older || !older && err != nil {
			t.Errorf("older entry %v: %v", older, err)
		}
		if got := slices.Contains(c.Keys(t), l.Key()); got == older {
			t.Errorf("older entry %v: the own one is there: %v", older, got)
		}
	}
}
