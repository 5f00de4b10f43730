package etcd_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// host is node 1 at the address of node i, on one of two machines.
func host(i int, boot string) (control.Node, []dataplane.VTEP) {
	was, _ := node(1)
	n, vteps := node(i)
	n.ID, n.Name, n.Process = "id-1", "host-"+boot, control.Process{Boot: boot, NetNS: 7}
	n.Previous, n.Former = []netip.Prefix{moveSubnet}, []netip.Addr{was.PublicIP}
	return n, vteps
}

func acquireAs(t *testing.T, s *etcd.Store, i int, boot string) (control.Lease, error) {
	t.Helper()
	n, vteps := host(i, boot)
	return s.Acquire(t.Context(), n, vteps)
}

// original is a daemon at the address of node 1 with a way to etcd of its own, to be cut.
func original(t *testing.T, c *cluster) (*etcd.Store, control.Lease, *proxy) {
	t.Helper()
	way := newProxy(t, c.socket())
	cfg := c.cfg
	cfg.Endpoints = []string{"http://" + way.addr()}
	s, err := etcd.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l, err := acquireAs(t, s, 1, "a")
	if err != nil || l.Subnet != moveSubnet {
		t.Fatalf("the original acquired %s, %v", l.Key(), err)
	}
	return s, l, way
}

// attend watches as a daemon does that has a lease, and drops what it sees.
func attend(t *testing.T, s *etcd.Store) {
	t.Helper()
	updates := watch(t, s)
	receive(t, updates)
	go func() {
		for range updates {
		}
	}()
}

// TestCloneOfALivingHost: it gets a subnet of its own, or none under the same address; the original
// keeps its own, and its record. One that attends answers at once; the record of one that does not outlives NodeTTL.
func TestCloneOfALivingHost(t *testing.T) {
	t.Parallel()
	for _, attends := range []bool{true, false} {
		c := newCluster(t)
		c.SetConfig(t, []byte(config))
		c.cfg.NodeTTL = time.Second
		if attends {
			c.cfg.NodeTTL = time.Hour
		}
		a, l, _ := original(t, c)
		if attends {
			attend(t, a)
		}
		same, b := c.open(t), c.open(t)
		if _, err := acquireAs(t, same, 1, "b"); !errors.Is(err, control.ErrTaken) || errors.Is(err, control.ErrCloned) || !strings.Contains(err.Error(), `host "host-a"`) {
			t.Errorf("at the same address: %v, want ErrTaken that names host-a", err)
		}
		_, err := acquireAs(t, b, 2, "b")
		if err == nil || !strings.Contains(err.Error(), `host "host-a" at 192.0.0.1`) {
			t.Errorf("at another address: %v, want an error that names the host", err)
		}
		var own control.Lease
		eventually(t, "a subnet of its own", func() bool { own, err = acquireAs(t, b, 2, "b"); return err == nil })
		if own.Subnet == l.Subnet {
			t.Errorf("the clone has %s of the original", own.Subnet)
		}
		if attends {
			eventually(t, "the end of the clone with the same address", func() bool {
				_, err := acquireAs(t, same, 1, "b")
				return errors.Is(err, control.ErrCloned) && strings.Contains(err.Error(), `host "host-a" at 192.0.0.1 has answered`)
			})
		} else if _, err := acquireAs(t, same, 1, "b"); !errors.Is(err, control.ErrTaken) || errors.Is(err, control.ErrCloned) {
			t.Errorf("at the same address as one that does not answer: %v, want ErrTaken", err)
		}
		if now, err := a.Renew(t.Context(), l); err != nil || now.ModRevision != l.ModRevision {
			t.Errorf("the original renews %+v, %v", now, err)
		}
		asks, _ := host(1, "b")
		stranger, found := c.open(t), errors.New("") // has no lease
		eventually(t, "the original is found alive", func() bool {
			var name string
			var lives bool
			name, lives, found = stranger.OtherNode(t.Context(), asks, l.PublicIP)
			return found == nil && lives && name == "host-a" || attends && found != nil && strings.Contains(found.Error(), `is of host "host-a"`) // its NodeTTL is an hour
		})
	}
}

// TestCloneGivesNothingBack: what a clone has published is not the original's lease, whatever its copied files remember.
func TestCloneGivesNothingBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	_, l, _ := original(t, c)
	clone := c.open(t)
	n, _ := host(2, "b")
	if leases, err := clone.Published(t.Context(), n); err != nil || len(leases) > 0 {
		t.Errorf("without a lease of its own it has published %v, %v", leases, err)
	}
	var own control.Lease
	eventually(t, "a subnet of its own", func() (ok bool) {
		var err error
		own, err = acquireAs(t, clone, 2, "b")
		return err == nil
	})
	for _, n.Previous = range [][]netip.Prefix{{own.Subnet}, {l.Subnet}, nil} {
		if leases, err := clone.Published(t.Context(), n); err != nil || len(leases) != 1 || leases[0].Key() != own.Key() {
			t.Errorf("with the subnets %v of the last run it has published %v, %v", n.Previous, leases, err)
		}
	}
}

// TestCloneOfBeforeTheRecord: a daemon watches before it has a record, and reports the clones that it saw then.
func TestCloneOfBeforeTheRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Second
	original(t, c) // it does not attend, and so its record does not change
	b := c.open(t)
	attend(t, b)
	eventually(t, "a subnet of its own", func() bool { _, err := acquireAs(t, b, 2, "b"); return err == nil })
	if clones := b.Status().Clones; len(clones) != 1 || clones[0].Host != "host-a" || !clones[0].Gone.IsZero() {
		t.Errorf("clones %+v, want host-a", clones)
	}
}

// TestClonesAreReported: the original logs each clone once, and its status has it, and when it has gone. What else is below
// the records is not a clone.
func TestClonesAreReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	plain := c.cfg
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, _, _ := original(t, c)
	c.cfg = plain
	attend(t, a)
	long, zone := "192.0.0.1/"+strings.Repeat("q", 65), "fe80::1%"+strings.Repeat("z", 65)
	for name, value := range map[string]string{long: `{"id":"id-1","boot":"q","netns":3}`, zone: `{"id":"id-1","boot":"z","netns":3}`, "192.0.0.1/x": "junk", "192.0.0.1/y": `{"id":"id-2","boot":"z","netns":3}`, "192.0.0.7": `{"id":"id-1"`, "192.0.0.1/z": `["id-1"]`} {
		c.putRecord(t, name, value)
	}
	for range 3 { // as a supervisor starts it
		b := c.open(t)
		eventually(t, "the end of the clone", func() bool { _, err := acquireAs(t, b, 1, "b"); return errors.Is(err, control.ErrCloned) })
		b.Close()
	}
	other := c.open(t)
	eventually(t, "another clone has a lease", func() bool { _, err := acquireAs(t, other, 2, "b"); return err == nil })
	var clones []control.Clone
	status := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			var got []string
			clones = a.Status().Clones
			for _, cl := range clones {
				got = append(got, fmt.Sprint(cl.Host, " ", cl.PublicIP, " ", cl.Boot, " gone ", !cl.Gone.IsZero()))
			}
			return slices.Equal(got, want)
		})
	}
	status("the status", "host-b 192.0.0.1 b gone true", "host-b 192.0.0.2 b gone false")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	status("the status without the second", "host-b 192.0.0.1 b gone true", "host-b 192.0.0.2 b gone true")
	for i := range 20 {
		c.putRecord(t, fmt.Sprintf("192.0.0.1/%d", i), fmt.Sprintf(`{"id":"id-1","name":"h\n","boot":"%d","netns":1,"from":"192.0.1.%d"}`, i, i))
	}
	eventually(t, "the last one", func() bool { clones = a.Status().Clones; return clones[len(clones)-1].Boot == "19" })
	if len(clones) != 8 || clones[0].Host != `h\n` {
		t.Errorf("clones %+v", clones)
	}
	for _, ip := range []string{"192.0.0.1", "192.0.0.2"} {
		if n := strings.Count(log.String(), "host=host-b public_ip="+ip+" "); n != 1 {
			t.Errorf("%d lines about the clone at %s, want 1", n, ip)
		}
	}
}

// putRecord writes a key below the records, under an etcd lease as every record is.
func (c *cluster) putRecord(t *testing.T, name, value string) {
	t.Helper()
	grant, err := c.client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	c.do(t, clientv3.OpPut(prefix+"/overlayd/nodes/"+name, value, clientv3.WithLease(grant.ID)))
}

// TestReplacedByItsClone: a host that was stopped until its clone had its address and subnet loses both, and ends.
func TestReplacedByItsClone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, l, way := original(t, c)
	attend(t, a)
	way.freeze()
	record := c.do(t, clientv3.OpGet(record1)).Get().Kvs[0]
	if _, err := c.client.Revoke(t.Context(), clientv3.LeaseID(record.Lease)); err != nil { // as if it had expired
		t.Fatal(err)
	}
	b := c.open(t)
	taken, err := acquireAs(t, b, 1, "b")
	if err != nil || taken.Subnet != l.Subnet {
		t.Fatalf("the clone acquired %s, %v", taken.Key(), err)
	}
	attend(t, b)
	way.cut()
	eventually(t, "the original loses its lease", func() bool { _, err := a.Renew(t.Context(), l); return errors.Is(err, control.ErrLost) })
	eventually(t, "the end of the original", func() bool { _, err := acquireAs(t, a, 1, "a"); return errors.Is(err, control.ErrCloned) })
	eventually(t, "both log it", func() bool {
		return strings.Contains(log.String(), "another node has taken over this node's record") && strings.Contains(log.String(), "host=host-a public_ip=192.0.0.1 boot=a")
	})
	if now, err := b.Renew(t.Context(), taken); err != nil || now.ModRevision != taken.ModRevision {
		t.Errorf("the clone renews %+v, %v", now, err)
	}
}

// TestRecordIsWrittenBack: one that is deleted or overwritten while its etcd lease lives is there again at once, whether the watch sees that
// or, after a gap, a list.
func TestRecordIsWrittenBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	c.cfg.NodeTTL = time.Hour
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, l, way := original(t, c)
	attend(t, a)
	before := c.do(t, clientv3.OpGet(record1)).Get().Kvs[0]
	for name, change := range map[string]clientv3.Op{"deleted": clientv3.OpDelete(record1), "overwritten": clientv3.OpPut(record1, `{"id":"id-1","name":"old"}`), "junk": clientv3.OpPut(record1, "x")} {
		for _, gap := range []bool{false, true} {
			if gap {
				way.freeze()
			}
			c.do(t, change)
			if gap {
				way.cut()
			}
			eventually(t, name+": it is back", func() bool {
				kvs := c.do(t, clientv3.OpGet(record1)).Get().Kvs
				return len(kvs) == 1 && string(kvs[0].Value) == string(before.Value) && kvs[0].Lease == before.Lease
			})
		}
	}
	if now, err := a.Renew(t.Context(), l); err != nil || now.ModRevision != l.ModRevision {
		t.Errorf("renewed %+v, %v", now, err)
	}
	eventually(t, "the log has it", func() bool {
		text := log.String()
		return strings.Count(text, "was missing in etcd: written again") == 1 && strings.Count(text, "was overwritten in etcd: written again") == 1 &&
			strings.Count(text, "was an older one of its own: written again") == 1
	})
}

// TestCloneOfADeadHost: it takes the place of the original when that one's record has expired.
func TestCloneOfADeadHost(t *testing.T) {
	t.Parallel()
	for _, at := range []int{1, 2} {
		c := newCluster(t)
		c.SetConfig(t, []byte(config))
		c.cfg.NodeTTL = time.Second
		_, l, way := original(t, c)
		way.close()
		b := c.open(t)
		eventually(t, "the subnet of the original", func() bool {
			got, err := acquireAs(t, b, at, "b")
			return err == nil && got.Subnet == l.Subnet
		})
	}
}

// TestProcessOfTheSameHost: a later process of one host is not a clone. It takes up the lease at once, whatever its address is.
func TestProcessOfTheSameHost(t *testing.T) {
	t.Parallel()
	for _, at := range []int{1, 2} {
		c := newCluster(t)
		c.SetConfig(t, []byte(config))
		_, l, _ := original(t, c)
		if got, err := acquireAs(t, c.open(t), at, "a"); err != nil || got.Subnet != l.Subnet {
			t.Errorf("at address %d: acquired %s, %v, want %s", at, got.Key(), err, l.Key())
		}
	}
}
