package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// leaves takes the host's IPv4 address from it.
func (h *host) leaves() {
	h.c.t.Helper()
	h.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: h.addr.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
}

// arrives gives the host another address. Nobody remembers which link that had before, as on
// the network of a cloud.
func (h *host) arrives(addr netip.Addr) {
	h.c.t.Helper()
	h.addr = addr
	h.Addr("eth0", netip.PrefixFrom(addr, 24).String())
	h.DefaultRoute("192.0.2.1")
	h.c.under.Run("ip", "neigh", "flush", "dev", "br0")
	for _, other := range h.c.hosts {
		other.Run("ip", "neigh", "flush", "dev", "eth0")
	}
}

// rotate gives each of the first n hosts the address that the next one had.
func (c *cluster) rotate(n int) {
	c.t.Helper()
	addrs := make([]netip.Addr, n)
	for i, h := range c.hosts[:n] {
		addrs[i] = h.addr
		h.leaves()
	}
	for i, h := range c.hosts[:n] {
		h.arrives(addrs[(i+1)%n])
	}
}

// meet waits until every pod reaches every other one.
func meet(t *testing.T, limit time.Duration, pods ...*pod) {
	t.Helper()
	eventually(t, limit, "all pods reach each other", func() error {
		for i, from := range pods {
			for j, to := range pods {
				if i == j {
					continue
				}
				if err := echoWithin(from.NS, to.addr, 56, 50*time.Millisecond); err != nil {
					return fmt.Errorf("pod %d to pod %d: %w", i, j, err)
				}
			}
		}
		return nil
	})
}

// checkMACs wants each host's lease to have the MAC of the host's own address.
func (c *cluster) checkMACs(hosts ...*host) {
	c.t.Helper()
	for _, h := range hosts {
		want := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, h.addr, dataplane.MAC(h.addr, 1))
		if got := c.get(h.key()); got != want {
			c.t.Errorf("lease of %s is %s, want %s", h.name, got, want)
		}
	}
}

// soon is how long it may take until everybody reaches everybody after the last daemon was started.
const soon = 2 * time.Second

// meetSoon wants all pods to reach each other soon after began.
func meetSoon(t *testing.T, began moment, pods ...*pod) {
	t.Helper()
	meet(t, patience, pods...)
	took := began.passed(t)
	t.Logf("all pairs after %s", took)
	if took > promised(soon) {
		t.Errorf("all pairs reach each other after %s, want %s", took, soon)
	}
}

// TestAddressesExchanged: hosts that come to each other's addresses, while their daemons run or do not,
// keep their subnets, and all reach each other soon after the last start.
func TestAddressesExchanged(t *testing.T) {
	for _, tt := range []struct {
		name  string
		modes [3]string
		hosts int // that exchange their addresses; the rest stays
		how   unix.Signal
	}{
		{"kernel, two, stopped", [3]string{modeKernel, modeKernel, modeUserspace}, 2, unix.SIGTERM},
		{"userspace, two, killed", [3]string{modeUserspace, modeUserspace, modeKernel}, 2, unix.SIGKILL},
		{"mixed, two, killed", [3]string{modeKernel, modeUserspace, modeKernel}, 2, unix.SIGKILL},
		{"mixed, three, stopped", [3]string{modeUserspace, modeKernel, modeKernel}, 3, unix.SIGTERM},
		{"kernel, three, killed", [3]string{modeKernel, modeKernel, modeKernel}, 3, unix.SIGKILL},
		{"mixed, two, running", [3]string{modeKernel, modeUserspace, modeKernel}, 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, testNetwork)
			var pods []*pod
			var had []netip.Prefix
			for i, h := range c.hosts {
				h.up("--dataplane", tt.modes[i])
				pods, had = append(pods, h.pod(0, 0)), append(had, h.gateway())
			}
			meet(t, patience, pods...)
			for _, h := range c.hosts[:tt.hosts] {
				if tt.how != 0 {
					h.daemon.stop(tt.how)
				}
			}
			c.rotate(tt.hosts)
			began := now(t)
			for i, h := range c.hosts[:tt.hosts] {
				if tt.how != 0 {
					h.start("--dataplane", tt.modes[i])
					began = now(t)
				}
			}
			meetSoon(t, began, pods...)
			for i, h := range c.hosts {
				if got := h.gateway(); got != had[i] {
					t.Errorf("%s has %s, had %s", h.name, got, had[i])
				}
			}
			c.checkMACs(c.hosts...)
		})
	}
}

// TestAddressRecycled: the first host moves to another address, and a new host gets the one that it had,
// at once. All reach each other, and nobody is refused.
func TestAddressRecycled(t *testing.T) {
	for _, tt := range []struct {
		name            string
		mover, new, old string // dataplanes; old is that of a host that stays
		killed          bool   // the mover is killed before it moves, and started afterwards
	}{
		{"kernel, then kernel", modeKernel, modeKernel, modeKernel, false},
		{"kernel, then userspace", modeKernel, modeUserspace, modeKernel, true},
		{"userspace, then kernel", modeUserspace, modeKernel, modeUserspace, false},
		{"userspace, then userspace", modeUserspace, modeUserspace, modeKernel, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, testNetwork)
			mover, stays, next := c.hosts[0], c.hosts[1], c.hosts[2]
			stays.up("--dataplane", tt.old)
			mover.up("--dataplane", tt.mover)
			pods := []*pod{mover.pod(0, 0), stays.pod(0, 0)}
			meet(t, patience, pods...)
			subnet, was := mover.gateway(), mover.addr
			if tt.killed {
				mover.daemon.stop(unix.SIGKILL)
			}
			mover.leaves()
			mover.arrives(netip.MustParseAddr("192.0.2.77"))
			if tt.killed {
				mover.start("--dataplane", tt.mover)
			}
			next.leaves()
			next.arrives(was)
			c.moved(mover, was) // else the newcomer takes the lease of this address, as a flanneld does
			began := now(t)
			next.up("--dataplane", tt.new)
			pods = append(pods, next.pod(0, 0))
			meetSoon(t, began, pods...)
			if got := mover.gateway(); got != subnet {
				t.Errorf("the mover has %s, had %s", got, subnet)
			}
			c.checkMACs(c.hosts...)
			for _, h := range c.hosts {
				for _, bad := range []string{"lease not used", "another host publishes", "in use by another live node"} {
					if strings.Contains(h.daemon.text(), bad) {
						t.Errorf("%s says: %s\n%s", h.name, bad, h.daemon.text())
					}
				}
			}
		})
	}
}

// moved waits until neither a host's lease nor its record has its earlier address.
func (c *cluster) moved(h *host, was netip.Addr) {
	c.t.Helper()
	eventually(c.t, patience, h.name+" has no record of its earlier address", func() error {
		if v := c.get(storePrefix + "overlayd/nodes/" + was.String()); v != "" {
			return fmt.Errorf("it is %s", v)
		}
		return nil
	})
	eventually(c.t, patience, "the lease of "+h.name+" has the new address", func() error {
		if v := c.get(h.key()); strings.Contains(v, fmt.Sprintf("%q", was)) {
			return fmt.Errorf("it is %s", v)
		}
		return nil
	})
}
