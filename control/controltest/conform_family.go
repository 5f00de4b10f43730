package controltest

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// The networks of the cases with IPv6.
const (
	config6    = `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:6::/48","Backend":{"VNI":7}}`
	configDual = `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48","Backend":{"VNI":7}}`
)

// acquireFamilies: what is published, by the families of the network and of the VTEPs.
func acquireFamilies(t *testing.T, h Harness) {
	for i, tt := range []struct {
		name, config string
		vteps        string // the families of which the node has VTEPs and public IPs
		v4, v6       bool   // of which it publishes them
	}{
		{"IPv4", config, "46", true, false},
		{"IPv6", config6, "46", false, true},
		{"two", configDual, "46", true, true},
		{"IPv4 over IPv6", config, "6", false, true},
		{"IPv6 over IPv4", config6, "4", true, false},
		{"two over IPv4", configDual, "4", true, false},
		{"two over IPv6", configDual, "6", false, true},
	} {
		h.SetConfig(t, []byte(tt.config))
		network, err := control.ParseNetwork([]byte(tt.config))
		if err != nil {
			t.Fatal(err)
		}
		n, vteps := only(i+1, tt.vteps)
		s := h.Open(t)
		l, err := s.Acquire(t.Context(), n, vteps)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !control.Compatible(network, l.Subnet, l.IPv6Subnet) {
			t.Errorf("%s: lease of %s %s does not fit the network", tt.name, l.Subnet, l.IPv6Subnet)
		}
		has4, has6 := l.PublicIP.IsValid() && l.Backend.VNI == 7, l.PublicIPv6.IsValid() && l.BackendV6.VNI == 7
		if has4 != tt.v4 || has6 != tt.v6 {
			t.Errorf("%s: published %+v", tt.name, l)
		}
		checkStored(t, h, l)
		renewed, err := s.Renew(t.Context(), l)
		if err != nil || renewed.Key() != l.Key() {
			t.Errorf("%s: renewed %+v, %v", tt.name, renewed, err)
		}
		again, err := h.Open(t).Acquire(t.Context(), n, vteps)
		if err != nil || again.Key() != l.Key() || again.CreateRevision != l.CreateRevision {
			t.Errorf("%s: after a restart acquired %+v, %v, want %s", tt.name, again, err, l.Key())
		}
	}
}

// only is the i-th node with VTEPs of the given families alone, as "46".
func only(i int, families string) (control.Node, []dataplane.VTEP) {
	n, both := node(i)
	var vteps []dataplane.VTEP
	n.PublicIP, n.PublicIPv6 = netip.Addr{}, netip.Addr{}
	for _, f := range families {
		if f == '4' {
			n.PublicIP, vteps = both[0].Addr, append(vteps, both[0])
		} else {
			n.PublicIPv6, vteps = both[1].Addr, append(vteps, both[1])
		}
	}
	return n, vteps
}

// acquireWithoutVTEP: a node that cannot be reached gets nothing.
func acquireWithoutVTEP(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	n, vteps := node(1)
	if l, err := h.Open(t).Acquire(t.Context(), n, nil); err == nil {
		t.Errorf("without VTEPs acquired %+v", l)
	}
	n.PublicIP, n.PublicIPv6 = netip.Addr{}, netip.Addr{}
	if l, err := h.Open(t).Acquire(t.Context(), n, vteps); err == nil {
		t.Errorf("without public IPs acquired %+v", l)
	}
}

// acquireIPv6Nodes: every IPv6-only node has its own subnet, though all have the same
// IPv4 address, none (facts D11).
func acquireIPv6Nodes(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config6))
	seen := map[netip.Prefix]bool{}
	for i := range 5 {
		n, vteps := only(i+1, "6")
		l, err := h.Open(t).Acquire(t.Context(), n, vteps)
		if err != nil || seen[l.IPv6Subnet] || l.PublicIPv6 != n.PublicIPv6 {
			t.Fatalf("%s acquired %+v, %v; taken %v", n.Name, l, err, seen)
		}
		seen[l.IPv6Subnet] = true
	}
	if keys := h.Keys(t); len(keys) != 5 {
		t.Errorf("entries %v, want five", keys)
	}
}

// acquireTakenByIPv6 is acquireTaken for nodes that have no IPv4.
func acquireTakenByIPv6(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config6))
	n, vteps := only(1, "6")
	if _, err := h.Open(t).Acquire(t.Context(), n, vteps); err != nil {
		t.Fatal(err)
	}
	n.ID = "id-of-a-clone"
	wantTaken(t, h, n, vteps)
}

// acquireChangedFamilies: what a node keeps when the families of the network change.
func acquireChangedFamilies(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	_, l4 := acquire(t, h, 1)
	h.SetConfig(t, []byte(configDual))
	_, dual := acquire(t, h, 1)
	if dual.Subnet != l4.Subnet || !dual.IPv6Subnet.IsValid() {
		t.Errorf("with a second family acquired %s %s, want %s to stay", dual.Subnet, dual.IPv6Subnet, l4.Subnet)
	}
	h.SetConfig(t, []byte(config6))
	_, l6 := acquire(t, h, 1)
	if l6.IPv6Subnet != dual.IPv6Subnet || l6.Subnet.IsValid() {
		t.Errorf("without the first family acquired %s %s, want %s to stay", l6.Subnet, l6.IPv6Subnet, dual.IPv6Subnet)
	}
	if keys := h.Keys(t); len(keys) != 1 || keys[0] != l6.Key() {
		t.Errorf("entries %v, want %s alone", keys, l6.Key())
	}
}

// acquireConcurrentlyTwoFamilies: 60 nodes at once, for as many IPv4 subnets as there are
// of IPv6 or fewer. Each family is unique on its own.
func acquireConcurrentlyTwoFamilies(t *testing.T, h Harness) {
	const nodes = 60
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/24","SubnetLen":30,"SubnetMin":"10.3.0.0",
		"EnableIPv6":true,"IPv6Network":"fd10:6::/58","IPv6SubnetLen":64,"IPv6SubnetMin":"fd10:6::","Backend":{"VNI":7}}`))
	var mu sync.Mutex
	seen := map[netip.Prefix]string{}
	var wg sync.WaitGroup
	for i := range nodes {
		s := h.Open(t)
		wg.Go(func() {
			n, vteps := node(i + 1)
			l, err := s.Acquire(t.Context(), n, vteps)
			mu.Lock()
			defer mu.Unlock()
			for _, p := range []netip.Prefix{l.Subnet, l.IPv6Subnet} {
				if err != nil || seen[p] != "" {
					t.Errorf("%s acquired %s, which %q has; %v", n.Name, p, seen[p], err)
				}
				seen[p] = n.Name
			}
		})
	}
	wg.Wait()
	if keys := h.Keys(t); len(keys) != nodes {
		t.Errorf("%d entries, want %d", len(keys), nodes)
	}
}
