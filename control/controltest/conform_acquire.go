package controltest

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

func networkMissing(t *testing.T, h Harness) {
	if _, err := h.Open(t).Network(t.Context()); !errors.Is(err, control.ErrNoNetwork) {
		t.Errorf("no config: %v, want ErrNoNetwork", err)
	}
}

func networkBad(t *testing.T, h Harness) {
	s := h.Open(t)
	for _, text := range []string{"", "x", `{"Network":"10.3.0.0/29"}`, `{"Network":"10.3.0.0/16","Backend":{"Type":"udp"}}`} {
		h.SetConfig(t, []byte(text))
		_, err := s.Network(t.Context())
		var bad *control.NetworkError
		if !errors.As(err, &bad) {
			t.Errorf("config %q: %v, want a *NetworkError", text, err)
		}
	}
}

func networkGood(t *testing.T, h Harness) {
	s := h.Open(t)
	for _, text := range []string{config, `{"Network":"10.9.0.0/20"}`} { // a change is seen at once
		h.SetConfig(t, []byte(text))
		want, err := control.ParseNetwork([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Network(t.Context()); err != nil || got != want {
			t.Errorf("network %+v, %v, want %+v", got, err, want)
		}
	}
}

func acquireFirst(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	_, l := acquire(t, h, 1)
	n, vteps := node(1)
	network, err := control.ParseNetwork([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if !control.Compatible(network, l.Subnet, l.IPv6Subnet) {
		t.Errorf("lease of %s %s does not fit the network", l.Subnet, l.IPv6Subnet)
	}
	want := control.Lease{Subnet: l.Subnet, PublicIP: n.PublicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: vteps[0].VNI, MAC: vteps[0].MAC}, Facts: n.Facts(),
		CreateRevision: l.CreateRevision, ModRevision: l.ModRevision, Handle: l.Handle, Expires: l.Expires}
	if l != want {
		t.Errorf("lease %+v, want %+v", l, want)
	}
	if l.CreateRevision == 0 || l.ModRevision == 0 {
		t.Errorf("revisions %d, %d", l.CreateRevision, l.ModRevision)
	}
	checkStored(t, h, l)
}

func acquireWithoutNetwork(t *testing.T, h Harness) {
	n, vteps := node(1)
	if l, err := h.Open(t).Acquire(t.Context(), n, vteps); !errors.Is(err, control.ErrNoNetwork) {
		t.Errorf("acquired %+v, %v, want ErrNoNetwork", l, err)
	}
}

// acquireResumesByPublicIP: a restarted node has what it had, whatever it
// remembers, and publishes what it is now, with the MAC that its peers know.
func acquireResumesByPublicIP(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	h.PutRaw(t, "10.3.77.0-24", foreign(1))
	h.PutRaw(t, "10.3.78.0-24", foreign(2))
	n, vteps := node(1)
	n.Previous = []netip.Prefix{netip.MustParsePrefix("10.3.5.0/24")}
	l, err := h.Open(t).Acquire(t.Context(), n, vteps)
	if err != nil || l.Key() != "10.3.77.0-24" || string(l.Value()) != string(foreign(1)) {
		t.Fatalf("acquired %+v, %v", l, err)
	}
	checkStored(t, h, l)
	again, err := h.Open(t).Acquire(t.Context(), n, vteps) // the same node, killed and started again
	if err != nil || again.Subnet != l.Subnet || again.CreateRevision != l.CreateRevision {
		t.Errorf("after a restart acquired %+v, %v", again, err)
	}
	if keys := h.Keys(t); len(keys) != 2 {
		t.Errorf("entries %v, want two", keys)
	}
}

func acquireResumesPrevious(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	_, l := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24"))
	if l.Key() != "10.3.5.0-24" {
		t.Errorf("acquired %s, want the previous subnet", l.Key())
	}
}

func acquirePreviousTaken(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	h.PutRaw(t, "10.3.5.0-24", foreign(2))
	_, l := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24"))
	if l.Key() == "10.3.5.0-24" {
		t.Error("acquired what another node has")
	}
	if got, _ := h.GetRaw(t, "10.3.5.0-24"); string(got) != string(foreign(2)) {
		t.Errorf("the other's entry became %q", got)
	}
}

func acquirePreviousIncompatible(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	network, err := control.ParseNetwork([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []string{"10.4.5.0/24", "10.3.0.0/24", "10.3.5.0/25"} {
		_, l := acquire(t, h, i+1, netip.MustParsePrefix(p))
		if !control.Compatible(network, l.Subnet, l.IPv6Subnet) {
			t.Errorf("previous %s: acquired %s", p, l.Subnet)
		}
	}
}

// acquireReplacesIncompatible: the own lease from before a change of the config.
func acquireReplacesIncompatible(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	if r, ok := h.(Reserver); ok {
		r.PutLeased(t, "10.4.5.0-24", foreign(1))
	} else {
		h.PutRaw(t, "10.4.5.0-24", foreign(1))
	}
	_, l := acquire(t, h, 1)
	if keys := h.Keys(t); len(keys) != 1 || keys[0] != l.Key() || !strings.HasPrefix(l.Key(), "10.3.") {
		t.Errorf("acquired %s, entries %v", l.Key(), keys)
	}
}

func acquireAroundOtherLengths(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/24","SubnetLen":27,"SubnetMin":"10.3.0.0"}`))
	for _, key := range []string{"10.3.0.0-26", "10.3.0.68-30", "10.3.0.128-25", "junk", "10.3.0.999-27"} {
		h.PutRaw(t, key, foreign(9))
	}
	_, l := acquire(t, h, 1)
	if l.Key() != "10.3.0.96-27" {
		t.Errorf("acquired %s, only 10.3.0.96-27 is free", l.Key())
	}
}

// wideJunk puts entries that nobody can use and that together cover any network.
func wideJunk(t *testing.T, h Harness) {
	t.Helper()
	for _, key := range []string{"10.0.0.0-8", "10.3.0.0-17", "10.3.128.0-17", "8.0.0.0-5&fd10::-16"} {
		h.PutRaw(t, key, []byte("junk"))
	}
	h.PutRaw(t, "10.3.0.0-16", foreign(9)) // a lease of an earlier, larger network
}

// acquireBesideWideJunk: neither a free subnet nor the previous one is kept from a node.
func acquireBesideWideJunk(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	wideJunk(t, h)
	if _, l := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24")); l.Key() != "10.3.5.0-24" {
		t.Errorf("acquired %s, want the previous subnet", l.Key())
	}
	acquire(t, h, 2)
}

func acquireWithinMinAndMax(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/16","SubnetMin":"10.3.9.0","SubnetMax":"10.3.11.0"}`))
	got := map[string]bool{}
	for i := range 3 {
		_, l := acquire(t, h, i+1)
		got[l.Key()] = true
	}
	if !got["10.3.9.0-24"] || !got["10.3.10.0-24"] || !got["10.3.11.0-24"] {
		t.Errorf("acquired %v", got)
	}
}

func acquireExhausted(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/28"}`))
	first, l := acquire(t, h, 1)
	acquire(t, h, 2)
	acquire(t, h, 3)
	n, vteps := node(4)
	s := h.Open(t)
	if got, err := s.Acquire(t.Context(), n, vteps); !errors.Is(err, control.ErrNoSubnet) {
		t.Fatalf("three of three are taken, acquired %+v, %v", got, err)
	}
	if err := first.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Acquire(t.Context(), n, vteps); err != nil || got.Subnet != l.Subnet {
		t.Errorf("%s is free again, acquired %+v, %v", l.Subnet, got, err)
	}
}

func acquireTaken(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	n, vteps := node(1)
	n.ID, n.Name = "id-of-a-clone", "clone"
	vteps[0].MAC[5] ^= 1
	wantTaken(t, h, n, vteps)
	checkStored(t, h, l)
	if _, err := s.Renew(t.Context(), l); err != nil {
		t.Errorf("renew after that: %v", err)
	}
}

// wantTaken acquires for a clone of node 1, which is alive.
func wantTaken(t *testing.T, h Harness, clone control.Node, vteps []dataplane.VTEP) {
	t.Helper()
	if got, err := h.Open(t).Acquire(t.Context(), clone, vteps); !errors.Is(err, control.ErrTaken) || !strings.Contains(err.Error(), "host-1") {
		t.Errorf("two live nodes, one public IP: acquired %+v, %v, want ErrTaken naming host-1", got, err)
	}
}

// acquireConcurrently starts 50 nodes at once, some of them with the same memory.
func acquireConcurrently(t *testing.T, h Harness) {
	const nodes = 50
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/24","SubnetLen":30,"SubnetMin":"10.3.0.0"}`)) // 64 subnets
	var mu sync.Mutex
	var all []control.Lease
	var wg sync.WaitGroup
	for i := range nodes {
		s := h.Open(t)
		wg.Go(func() {
			n, vteps := node(i + 1)
			if i%5 == 0 {
				n.Previous = []netip.Prefix{netip.MustParsePrefix("10.3.0.64/30")}
			}
			l, err := s.Acquire(t.Context(), n, vteps)
			if err != nil {
				t.Errorf("%s: %v", n.Name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, l)
		})
	}
	wg.Wait()
	seen := map[netip.Prefix]netip.Addr{}
	for _, l := range all {
		if other, ok := seen[l.Subnet]; ok {
			t.Errorf("%s was given to %s and %s", l.Subnet, other, l.PublicIP)
		}
		seen[l.Subnet] = l.PublicIP
		checkStored(t, h, l)
	}
	if keys := h.Keys(t); len(keys) != nodes {
		t.Errorf("%d entries, want %d", len(keys), nodes)
	}
}

func acquireTwoFamilies(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(configDual))
	h.PutRaw(t, "10.3.4.0-24&fd10:6:0:4::-64", []byte("unreadable, and yet taken"))
	want4, want6 := netip.MustParsePrefix("10.3.5.0/24"), netip.MustParsePrefix("fd10:6:0:5::/64")
	s, l := acquire(t, h, 1, want6, want4)
	if l.Subnet != want4 || l.IPv6Subnet != want6 || l.Key() != "10.3.5.0-24&fd10:6:0:5::-64" {
		t.Errorf("acquired %s %s", l.Subnet, l.IPv6Subnet)
	}
	if !l.PublicIPv6.IsValid() || l.BackendV6.VNI != 7 {
		t.Errorf("lease %+v", l)
	}
	checkStored(t, h, l)
	if _, err := s.Renew(t.Context(), l); err != nil {
		t.Errorf("renew: %v", err)
	}
	_, other := acquire(t, h, 2, netip.MustParsePrefix("10.3.4.0/24"), want6)
	if other.Subnet.Overlaps(want4) || other.IPv6Subnet.Overlaps(want6) || other.Subnet == netip.MustParsePrefix("10.3.4.0/24") {
		t.Errorf("the second acquired %s %s", other.Subnet, other.IPv6Subnet)
	}
}
