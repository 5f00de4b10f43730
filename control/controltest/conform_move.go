package controltest

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// moved is the i-th node after its public IP has become that of the j-th. mac is what its
// device has kept; without one the device has what is derived from the new address.
func moved(i, j int, mac encap.MAC, previous ...netip.Prefix) (control.Node, []dataplane.VTEP) {
	n, _ := node(i)
	to, vteps := node(j)
	n.Former = []netip.Addr{n.PublicIP, n.PublicIPv6}
	n.PublicIP, n.PublicIPv6, n.Previous = to.PublicIP, to.PublicIPv6, previous
	if mac != (encap.MAC{}) {
		vteps[0].MAC = mac
	}
	return n, vteps
}

// move is an entry under a previous subnet of node 1, which had the address of node 100
// and now has that of node 200. The MACs are the derived ones if none is given.
type move struct {
	name      string
	mac       encap.MAC // of the entry
	now       encap.MAC // of the node's device
	live      int       // which node is alive under the entry's address, and wrote it; 0: none
	forgotten bool      // the node has no memory of the subnet
	never     bool      // the node has not had the entry's address
	taken     bool      // the entry is the node's own
}

// acquireAfterMove: which entry under a previous subnet is the node's own.
func acquireAfterMove(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	kept, random := encap.MAC{0x0e, 0x2a, 0, 0, 0, 1}, encap.MAC{0x0e, 0x2a, 0, 0, 0, 2}
	for i, m := range []move{
		{name: "same MAC", mac: kept, now: kept, taken: true},
		{name: "same MAC, own sign of life", mac: kept, now: kept, live: 1, taken: true},
		{name: "same derived MAC, own sign of life", now: dataplane.MAC(addr(100), 7), live: 1, taken: true},
		{name: "derived MAC", taken: true},
		{name: "derived MAC, own sign of life", live: 1, taken: true},
		{name: "derived MAC, another's sign of life", live: 2},
		{name: "derived MAC, never had the address", never: true},
		{name: "random MAC", mac: random},
		{name: "random MAC, device with another", mac: random, now: kept},
		{name: "random MAC, own sign of life", mac: random, live: 1},
		{name: "same MAC, forgotten", mac: kept, now: kept, forgotten: true},
		{name: "derived MAC, forgotten", forgotten: true},
	} {
		m.check(t, h, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, byte(i + 1), 0}), 24))
	}
}

func (m move) check(t *testing.T, h Harness, subnet netip.Prefix) {
	key := control.Lease{Subnet: subnet}.Key()
	if m.mac == (encap.MAC{}) {
		m.mac = dataplane.MAC(addr(100), 7)
	}
	h.PutRaw(t, key, value(addr(100), m.mac))
	before := h.Open(t)
	if m.live != 0 {
		n, vteps := moved(m.live, 100, m.mac, subnet)
		if l, err := before.Acquire(t.Context(), n, vteps); err != nil || l.Key() != key {
			t.Fatalf("%s: before the move acquired %+v, %v", m.name, l, err)
		}
	}
	n, vteps := moved(1, 200, m.now, subnet)
	n.Former = append(n.Former, addr(100))
	if m.never {
		n.Former = nil
	}
	if m.forgotten {
		n.Previous = []netip.Prefix{netip.MustParsePrefix("10.3.250.0/24")}
	}
	now := h.Open(t)
	l, err := now.Acquire(t.Context(), n, vteps)
	if err != nil || (l.Subnet == subnet) != m.taken {
		t.Fatalf("%s: acquired %+v, %v, want the entry taken up: %v", m.name, l, err, m.taken)
	}
	checkStored(t, h, l)
	want := vteps[0].MAC
	if want == dataplane.MAC(addr(100), 7) {
		want = dataplane.MAC(addr(200), 7) // the other one is that of the next owner of the old address
	}
	if l.PublicIP != n.PublicIP || l.Backend.MAC != want {
		t.Errorf("%s: published %+v", m.name, l)
	}
	if got, _ := h.GetRaw(t, key); !m.taken && string(got) != string(value(addr(100), m.mac)) {
		t.Errorf("%s: the entry became %q", m.name, got)
	}
	h.DeleteRaw(t, key)
	for _, s := range []control.Store{now, before} { // and their signs of life
		if err := s.Release(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
}

// addr is the public IP of the i-th node.
func addr(i int) netip.Addr {
	n, _ := node(i)
	return n.PublicIP
}

// acquireAfterMoveAndRenew: the lease is as good as any, and that of the process before is lost.
func acquireAfterMoveAndRenew(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	before, old := acquire(t, h, 1)
	n, vteps := moved(1, 200, old.Backend.MAC, old.Subnet)
	s := h.Open(t)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil || l.Subnet != old.Subnet {
		t.Fatalf("acquired %+v, %v", l, err)
	}
	if got, err := before.Renew(t.Context(), old); err == nil {
		t.Errorf("the process before renews %+v", got)
	}
	if err := before.Release(t.Context(), old); err != nil {
		t.Error(err)
	}
	for _, touch := range []func(){
		func() {},
		func() { h.PutRaw(t, l.Key(), []byte("junk")) },
		func() { h.DeleteRaw(t, l.Key()) },
	} {
		touch()
		if l, err = s.Renew(t.Context(), l); err != nil {
			t.Fatalf("renew: %v", err)
		}
		checkStored(t, h, l)
	}
	if l, err = s.Acquire(t.Context(), n, vteps); err != nil || l.Subnet != old.Subnet { // by its public IP again
		t.Fatalf("acquired %+v, %v", l, err)
	}
	if err := s.Release(t.Context(), l); err != nil || len(h.Keys(t)) != 0 {
		t.Errorf("release: %v, entries %v", err, h.Keys(t))
	}
}

// acquireAfterMoveIsOneChange: others see one change of one entry, as old as it was.
func acquireAfterMoveIsOneChange(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, old := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24"))
	v := watch(t, h.Open(t))
	v.sees(t, old.Key(), old.Value())
	n, vteps := moved(1, 200, old.Backend.MAC, old.Subnet)
	l, err := s.Acquire(t.Context(), n, vteps) // of the same process: the address is a new one of its interface
	if err != nil {
		t.Fatal(err)
	}
	h.PutRaw(t, "10.3.250.0-24", foreign(9))
	changes := 0
	v.until(t, "what comes after", func() bool {
		if seen, ok := v.leases[old.Key()]; ok && seen.ModRevision != old.ModRevision {
			changes++
			if seen.ModRevision != l.ModRevision || seen.CreateRevision != old.CreateRevision || string(seen.Value()) != string(l.Value()) {
				t.Fatalf("sees %+v, want %+v", seen, l)
			}
		}
		_, ok := v.leases["10.3.250.0-24"]
		return ok
	})
	if changes == 0 || len(v.leases) != 2 || len(v.deleted) != 0 || v.resets != 1 {
		t.Errorf("leases %v, deleted %v, %d resets", v.leases, v.deleted, v.resets)
	}
}

// acquireAfterExchange: each of two hosts comes to the address that the other has had.
func acquireAfterExchange(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	macs := []encap.MAC{{}, {0x0e, 0x2a, 0, 0, 0, 1}, {0x0e, 0x2a, 0, 0, 0, 2}}
	s1, s2 := netip.MustParsePrefix("10.3.5.0/24"), netip.MustParsePrefix("10.3.6.0/24")
	h.PutRaw(t, "10.3.5.0-24", value(addr(1), macs[1]))
	h.PutRaw(t, "10.3.6.0-24", value(addr(2), macs[2]))
	for _, host := range []struct {
		i, at  int
		subnet netip.Prefix
	}{{2, 1, s2}, {1, 2, s1}} {
		n, vteps := moved(host.i, host.at, macs[host.i], host.subnet)
		if l, err := h.Open(t).Acquire(t.Context(), n, vteps); err != nil || l.Subnet != host.subnet {
			t.Errorf("%s acquired %+v, %v, want %s", n.Name, l, err, host.subnet)
		}
	}
	for key, want := range map[string][]byte{"10.3.5.0-24": value(addr(2), macs[1]), "10.3.6.0-24": value(addr(1), macs[2])} {
		if got, _ := h.GetRaw(t, key); string(got) != string(want) {
			t.Errorf("entry %s is %q, want %q", key, got, want)
		}
	}
}

// acquireAfterMoveTwoFamilies: the entry is the node's only with all of its subnets.
func acquireAfterMoveTwoFamilies(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(configDual))
	s, old := acquire(t, h, 1)
	n, vteps := moved(1, 200, encap.MAC{}, old.Subnet)
	half, err := h.Open(t).Acquire(t.Context(), n, vteps)
	if err != nil || half.Subnet == old.Subnet {
		t.Fatalf("with the memory of one family acquired %+v, %v", half, err)
	}
	checkStored(t, h, old)
	n, vteps = moved(1, 201, encap.MAC{}, old.IPv6Subnet, old.Subnet)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil || l.Key() != old.Key() || l.PublicIPv6 != n.PublicIPv6 || l.CreateRevision != old.CreateRevision {
		t.Errorf("acquired %+v, %v, want %s", l, err, old.Key())
	}
	checkStored(t, h, l)
}
