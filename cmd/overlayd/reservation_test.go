package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// ttl returns how long a key has to live, 0 if it never expires and less than 0 if
// it is not there.
func (c *cluster) ttl(key string) time.Duration {
	c.t.Helper()
	r, err := c.client.Get(c.t.Context(), key)
	if err != nil {
		c.t.Fatalf("get %s: %v", key, err)
	}
	switch {
	case len(r.Kvs) == 0:
		return -1
	case r.Kvs[0].Lease == 0:
		return 0
	}
	l, err := c.client.TimeToLive(c.t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	if err != nil {
		c.t.Fatalf("read lease of %s: %v", key, err)
	}
	return time.Duration(l.TTL) * time.Second
}

// expire ends the time that a key has to live.
func (c *cluster) expire(key string) {
	c.t.Helper()
	r, err := c.client.Get(c.t.Context(), key)
	if err != nil || len(r.Kvs) == 0 || r.Kvs[0].Lease == 0 {
		c.t.Fatalf("get %s: %v, %v; want a key that expires", key, r, err)
	}
	if _, err := c.client.Revoke(c.t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)); err != nil {
		c.t.Fatalf("revoke lease of %s: %v", key, err)
	}
	if v := c.get(key); v != "" {
		c.t.Fatalf("%s is still there: %s", key, v)
	}
}

// lease runs a lease command on the host.
func (h *host) lease(args ...string) {
	h.c.t.Helper()
	p := h.overlayd(append([]string{"lease", "--etcd-endpoints", h.c.url}, args...)...)
	if code := p.wait(patience); code != 0 {
		h.c.t.Fatalf("lease %v: exit code %d: %s", args, code, p.text())
	}
}

// TestReservation: a subnet that is reserved for a host is its own, and stays reserved while other entries are
// renewed, when the host starts again, and when it has been away until its record has expired: nobody else
// gets it, though no other is free. If the reservation is made and ended beside the running host, no packet
// is lost.
func TestReservation(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	c := newCluster(t, 3, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.34.0","SubnetMax":"10.5.35.0","Backend":{"Type":"vxlan"}}`)
	owner, other, late := c.hosts[0], c.hosts[1], c.hosts[2]
	flags := []string{"--dataplane", modeUserspace, "--lease-ttl", ttl.String()}
	const key = subnets + "10.5.34.0-24"
	reserved := func(when string) {
		t.Helper()
		if left := c.ttl(key); left != 0 || owner.key() != key {
			t.Errorf("%s: the reservation has a TTL of %s, its owner the subnet %s", when, left, owner.key())
		}
	}

	owner.lease("reserve", "10.5.34.0/24", "--public-ip", owner.addr.String())
	other.up(flags...)
	owner.up(flags...)
	reserved("at the start")
	if other.key() == key || c.ttl(other.key()) <= 0 {
		t.Errorf("the other has %s for %s", other.key(), c.ttl(other.key()))
	}
	a, b := owner.pod(0, 0), other.pod(0, 0)
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)
	lasts := time.Now().Add(3 * ttl / 2) // by then each of the others was renewed
	eventually(t, 2*ttl, "renewals", func() error {
		if left := time.Until(lasts); left > 0 {
			return fmt.Errorf("%s to go", left)
		}
		return nil
	})
	reserved("after renewals")

	released := func() {
		t.Helper()
		owner.lease("release", "10.5.34.0/24")
		eventually(t, promised(2*time.Second), "a lease of the owner's TTL", func() error {
			if left := c.ttl(key); left <= 0 || left > ttl {
				return fmt.Errorf("TTL %s", left)
			}
			return nil
		})
	}
	released()
	low := c.ttl(key)
	eventually(t, ttl, "the lease is renewed", func() error {
		left := c.ttl(key)
		low = min(low, left)
		return above(uint64(max(left, 0)), uint64(low))
	})
	owner.lease("reserve", "10.5.34.0/24", "--public-ip", owner.addr.String())
	reserved("again")
	waitTraffic(t, there, 200)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}

	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		owner.daemon.stop(sig)
		owner.up(flags...)
		reserved("after " + sig.String())
	}
	owner.daemon.stop(unix.SIGKILL)
	c.expire("/coreos.com/network/overlayd/nodes/" + owner.addr.String())
	late.start(flags...).waitLog("no free subnet", patience)
	if left := c.ttl(key); left != 0 {
		t.Errorf("away for a while: the reservation has a TTL of %s", left)
	}
	if err := os.Remove(owner.subnetFile); err != nil {
		t.Fatal(err)
	}
	owner.up(flags...)
	reserved("after its owner was away")

	released()
	owner.daemon.stop(unix.SIGKILL)
	late.daemon.waitLog("msg=ready", 40*time.Second)
	if late.key() != key {
		t.Errorf("the released subnet went to nobody: the third has %s", late.key())
	}
}
