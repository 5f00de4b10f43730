package etcd_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// reserved is a reservation of subnets for node i.
func reserved(i int, subnets ...string) control.Lease {
	n, _ := node(i)
	l := control.Lease{PublicIP: n.PublicIP}
	for _, s := range subnets {
		if p := netip.MustParsePrefix(s); p.Addr().Is6() {
			l.IPv6Subnet = p
		} else {
			l.Subnet = p
		}
	}
	return l
}

func TestEntries(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1, netip.MustParsePrefix("10.5.9.0/24"))
	c.PutRaw(t, "10.5.10.0-24", reserved(2).Value())
	c.PutRaw(t, "garbage", []byte("x"))
	c.PutLeased(t, "10.5.8.0-24", []byte("x"))
	entries, err := s.Entries(t.Context())
	if err != nil || len(entries) != 4 {
		t.Fatalf("%+v, %v", entries, err)
	}
	for i, want := range []struct {
		key      string
		bad      bool
		reserved bool
		ttl      time.Duration // at most
	}{{l.Key(), false, false, 24 * time.Hour}, {"10.5.10.0-24", false, true, 0}, {"10.5.8.0-24", true, false, time.Minute}, {"garbage", true, true, 0}} {
		e := entries[i]
		if e.Key != want.key || (e.Err != nil) != want.bad || e.Reserved != want.reserved || e.TTL > want.ttl || e.TTL < want.ttl*9/10 {
			t.Errorf("entry %d is %+v, want %+v", i, e, want)
		}
	}
	if entries[0].Lease.PublicIP != l.PublicIP || entries[0].Lease.Backend != l.Backend {
		t.Errorf("entry %+v, want %+v", entries[0].Lease, l)
	}
}

func TestReserveRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t)
	if err := s.Reserve(t.Context(), reserved(1, "10.5.5.0/24")); !errors.Is(err, control.ErrNoNetwork) {
		t.Errorf("without a config: %v", err)
	}
	c.SetConfig(t, []byte(config))
	acquire(t, s, 2, netip.MustParsePrefix("10.5.6.0/24"))
	c.PutRaw(t, "10.5.7.0-24", reserved(3).Value())
	c.PutRaw(t, "10.5.8.128-25", reserved(3).Value())
	c.PutRaw(t, "10.5.9.0-24", []byte("junk"))
	before := c.all(t)
	for _, tt := range []struct {
		l    control.Lease
		want string
	}{
		{reserved(1, "10.6.5.0/24"), "does not fit the network: want a /24 of 10.5.0.0/16 from 10.5.1.0 to 10.5.63.0"},
		{reserved(1, "10.5.0.0/24"), "does not fit the network"},
		{reserved(1, "10.5.5.0/25"), "does not fit the network"},
		{reserved(1, "10.5.5.0/24", "fd10::/64"), "does not fit the network"},
		{reserved(1, "10.5.6.0/24"), "10.5.6.0/24 belongs to 192.0.0.2"},
		{reserved(1, "10.5.7.0/24"), "10.5.7.0/24 belongs to 192.0.0.3"},
		{reserved(1, "10.5.8.0/24"), "10.5.8.0/24 overlaps 10.5.8.128/25, which is taken"},
		{reserved(1, "10.5.9.0/24"), "is not a lease"},
	} {
		if err := s.Reserve(t.Context(), tt.l); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.l.Key(), err, tt.want)
		}
	}
	if after := c.all(t); len(after) != len(before) {
		t.Errorf("entries %v, were %v", after, before)
	}
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`))
	if err := s.Reserve(t.Context(), reserved(1, "10.5.20.0/24")); err == nil || !strings.Contains(err.Error(), "fd10:6::/48") {
		t.Errorf("one family of two: %v", err)
	}
	if err := s.Reserve(t.Context(), reserved(1, "10.5.20.0/24", "fd10:6:0:2::/64")); err != nil {
		t.Error(err)
	}
	if err := s.Reserve(t.Context(), reserved(3, "10.5.21.0/24", "fd10:6:0:2::/64")); err == nil || !strings.Contains(err.Error(), "overlaps 10.5.20.0/24,fd10:6:0:2::/64") {
		t.Errorf("with another's second family: %v", err)
	}
}

// TestReservation is Accept 7: from nothing to its owner, over everything that the owner
// may do, and back.
func TestReservation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	operator := c.open(t)
	l := reserved(1, "10.5.5.0/24")
	for range 2 {
		if err := operator.Reserve(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.entry(t, l.Key()); got.value != `{"PublicIP":"192.0.0.1","PublicIPv6":null}` || got.lease != 0 {
		t.Fatalf("entry %+v", got)
	}
	s := c.open(t)
	got := acquire(t, s, 1, netip.MustParsePrefix("10.5.77.0/24"))
	if got.Key() != l.Key() || got.Handle != 0 || !got.Expires.IsZero() || c.entry(t, l.Key()).lease != 0 {
		t.Fatalf("acquired %+v", got)
	}
	if n := c.leases(t); n != 1 {
		t.Errorf("%d etcd leases, want the record's alone", n)
	}
	if err := s.Close(); err != nil { // and the owner is gone for good
		t.Fatal(err)
	}
	if n, left := c.leases(t), c.entry(t, l.Key()); n != 0 || left.value != string(got.Value()) {
		t.Errorf("%d etcd leases, entry %+v", n, left)
	}
	s = c.open(t)
	if again := acquire(t, s, 1); again.Key() != l.Key() || again.Handle != 0 || again.CreateRevision != got.CreateRevision {
		t.Errorf("after a restart acquired %+v", again)
	}
	// Of a node that lives it becomes a lease, which the node hangs on an etcd lease of its own.
	if _, deleted, err := operator.Unreserve(t.Context(), "10.5.5.0/24"); err != nil || deleted {
		t.Fatalf("unreserve: %v, deleted %v", err, deleted)
	}
	leased := c.entry(t, l.Key())
	if leased.lease == 0 || leased.created != got.CreateRevision || leased.value != string(got.Value()) {
		t.Fatalf("entry %+v", leased)
	}
	renewed, err := s.Renew(t.Context(), got)
	own := c.entry(t, l.Key())
	if err != nil || renewed.Handle == leased.lease || renewed.Handle != own.lease || renewed.Expires.IsZero() ||
		own.created != leased.created || own.value != leased.value || c.leases(t) != 2 {
		t.Errorf("renewed %+v, %v, %d etcd leases", renewed, err, c.leases(t))
	}
	// And of that lease a reservation again, which is deleted if no node lives there.
	if err := operator.Reserve(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if renewed, err = s.Renew(t.Context(), renewed); err != nil || renewed.Handle != 0 || c.leases(t) != 1 {
		t.Errorf("renewed %+v, %v, %d etcd leases", renewed, err, c.leases(t))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, deleted, err := operator.Unreserve(t.Context(), l.Key()); err != nil || !deleted || len(c.Keys(t)) != 0 {
		t.Errorf("unreserve: %v, deleted %v, entries %v", err, deleted, c.Keys(t))
	}
}

func TestUnreserveRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	acquire(t, s, 1, netip.MustParsePrefix("10.5.5.0/24"))
	c.PutRaw(t, "10.5.9.0-24", []byte("junk"))
	c.PutRaw(t, "10.5.6.0-24&fd10:6::-64", reserved(2).Value())
	c.PutRaw(t, "10.5.6.0-24", reserved(2).Value())
	for name, want := range map[string]string{
		"10.5.5.0/24": "is a lease of 192.0.0.1 and no reservation",
		"10.5.7.0/24": `no entry for "10.5.7.0/24"`,
		"10.5.6.0/24": "2 entries for 10.5.6.0/24: give the key of the one that is meant: '10.5.6.0-24' (192.0.0.2, reserved); '10.5.6.0-24&fd10:6::-64' (192.0.0.2, reserved)",
		"10.5.9.0/24": "is not a lease",
	} {
		if _, _, err := s.Unreserve(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, deleted, err := s.Unreserve(t.Context(), "10.5.6.0-24"); err != nil || !deleted {
		t.Errorf("by its key: %v, deleted %v", err, deleted)
	}
}

// TestRevokeOfOneOfTwo: a subnet that two entries have is not revoked; the error says which of them is used and recommends
// none, and the key of either revokes that one alone. An error names a few entries, however many there are.
func TestRevokeOfOneOfTwo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1, netip.MustParsePrefix("10.5.6.0/24"))
	value, second := l.Value(), "10.5.6.0-24&fd10:6::-64"
	c.PutLeased(t, second, []byte(strings.Replace(string(value), "192.0.0.1", "192.0.0.2", 1)))
	want := "2 entries for 10.5.6.0/24: give the key of the one that is meant: '10.5.6.0-24' (node host-1, 192.0.0.1, used); '10.5.6.0-24&fd10:6::-64' (192.0.0.2, refused)"
	if key, err := s.Revoke(t.Context(), "10.5.6.0/24"); err == nil || err.Error() != want || len(c.Keys(t)) != 2 {
		t.Errorf("revoked %q, %v, want %s", key, err, want)
	}
	for i := range 20 {
		c.PutLeased(t, fmt.Sprintf("10.5.6.0-24&fd10:7:0:%x::-64", i+1), value)
	}
	if _, err := s.Revoke(t.Context(), "10.5.6.0/24"); err == nil || !strings.HasPrefix(err.Error(), "22 entries") || !strings.HasSuffix(err.Error(), "; and 12 more, which overlayd lease list -o json shows") {
		t.Errorf("22 entries: %v", err)
	}
	if key, err := s.Revoke(t.Context(), second); err != nil || key != second || slices.Contains(c.Keys(t), second) || !slices.Contains(c.Keys(t), l.Key()) {
		t.Errorf("by its key: %q, %v, left %v", key, err, c.Keys(t))
	}
}

// TestRevoke: the owner loses its lease and does not come back to it, alive or not, until it
// is reserved for it; another node may have it at once.
func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		c := newCluster(t)
		c.SetConfig(t, []byte(`{"Network":"10.5.0.0/22"}`)) // three subnets
		operator, s := c.open(t), c.open(t)
		subnet := netip.MustParsePrefix("10.5.1.0/24")
		l := acquire(t, s, 1, subnet)
		key, err := operator.Revoke(t.Context(), "10.5.1.0/24")
		if err != nil || key != l.Key() || len(c.Keys(t)) != 0 {
			t.Fatalf("revoked %q, %v, entries %v", key, err, c.Keys(t))
		}
		if running {
			if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) || !strings.Contains(err.Error(), "operator") {
				t.Errorf("renewed %+v, %v, want ErrLost", got, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			s := c.open(t)
			got := acquire(t, s, 1, subnet)
			if got.Subnet == subnet {
				t.Fatalf("attempt %d: acquired what was revoked", i)
			}
			if err := s.Release(t.Context(), got); err != nil {
				t.Fatal(err)
			}
		}
		other := c.open(t)
		if got := acquire(t, other, 2, subnet); got.Subnet != subnet {
			t.Errorf("another node acquired %s", got.Subnet)
		} else if err := other.Release(t.Context(), got); err != nil {
			t.Fatal(err)
		}
		if err := operator.Reserve(t.Context(), reserved(1, "10.5.1.0/24")); err != nil {
			t.Fatal(err)
		}
		if got := acquire(t, c.open(t), 1); got.Subnet != subnet {
			t.Errorf("reserved for it again, acquired %s", got.Subnet)
		}
		if n := c.leases(t); n != 1 {
			t.Errorf("%d etcd leases, want the record's alone", n)
		}
	}
}

func TestRevokeJunk(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t)
	for _, key := range []string{"garbage", "10.5.9.0-24", "10.5.9.0-24hi"} {
		c.PutRaw(t, key, []byte("x"))
		if got, err := s.Revoke(t.Context(), key); err != nil || got != key || len(c.all(t)) != 0 {
			t.Errorf("%s: revoked %q, %v, keys %v", key, got, err, c.all(t))
		}
	}
}

// TestOperatorRaces has the owner renew while an operator reserves, ends the reservation and
// revokes: no write of either is undone by the other, and the owner ends without the subnet.
func TestOperatorRaces(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s, operator := c.open(t), c.open(t)
	l := acquire(t, s, 1, netip.MustParsePrefix("10.5.5.0/24"))
	var owner sync.WaitGroup
	lost := make(chan error, 1)
	owner.Go(func() {
		for {
			got, err := s.Renew(t.Context(), l)
			if err != nil {
				lost <- err
				return
			}
			l = got
		}
	})
	retry := func(what string, f func() error) {
		t.Helper()
		eventually(t, what, func() bool {
			err := f()
			if err != nil && !strings.Contains(err.Error(), "try again") {
				t.Fatalf("%s: %v", what, err)
			}
			return err == nil
		})
	}
	for range 20 {
		retry("reserve", func() error { return operator.Reserve(t.Context(), reserved(1, "10.5.5.0/24")) })
		retry("unreserve", func() error {
			_, deleted, err := operator.Unreserve(t.Context(), "10.5.5.0/24")
			if deleted {
				t.Fatal("deleted the reservation of a live node")
			}
			return err
		})
	}
	retry("revoke", func() error { _, err := operator.Revoke(t.Context(), "10.5.5.0/24"); return err })
	owner.Wait()
	if err := <-lost; !errors.Is(err, control.ErrLost) {
		t.Errorf("the owner ends with %v, want ErrLost", err)
	}
	if keys := c.Keys(t); len(keys) != 0 {
		t.Errorf("entries %v", keys)
	}
}

// TestOperatorOfAlloc: what is published with the backend alloc says no more than a reservation. An operator
// revokes it all the same, and leaves it to its node when the reservation ends.
func TestOperatorOfAlloc(t *testing.T) {
	t.Parallel()
	for _, isReserved := range []bool{false, true} {
		c := newCluster(t)
		c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"alloc"}}`))
		operator, s := c.open(t), c.open(t)
		if isReserved {
			if err := operator.Reserve(t.Context(), reserved(1, "10.5.5.0/24")); err != nil {
				t.Fatal(err)
			}
		}
		l := acquire(t, s, 1, netip.MustParsePrefix("10.5.5.0/24"))
		if isReserved {
			if _, deleted, err := operator.Unreserve(t.Context(), l.Key()); err != nil || deleted || !c.Expires(t, l.Key()) {
				t.Errorf("unreserve: %v, deleted %v, has a TTL %v", err, deleted, c.Expires(t, l.Key()))
			}
			if err := operator.Reserve(t.Context(), reserved(1, "10.5.5.0/24")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := operator.Revoke(t.Context(), l.Key()); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) || len(c.Keys(t)) != 0 {
			t.Errorf("reserved %v: renewed %+v, %v, want ErrLost; entries %v", isReserved, got, err, c.Keys(t))
		}
	}
}
