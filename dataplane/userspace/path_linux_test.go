package userspace

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// TestPathMTUIsLearned has a router between the hosts that takes only 1300 bytes, and
// both ends set DF: TCP is told to make smaller segments, and what may be
// fragmented is.
func TestPathMTUIsLearned(t *testing.T) {
	for _, offloads := range []Offloads{AllOffloads, 0} {
		t.Run(offloads.String(), func(t *testing.T) {
			a, b := newRoutedHosts(t, 1300)
			var ds [2]*Dataplane
			for i, h := range []*testHost{a, b} {
				h.df, h.offloads = true, offloads
				ds[i] = h.open()
			}
			a.sync(ds[0], b)
			b.sync(ds[1], a)
			a.run(ds[0])
			b.run(ds[1])
			transfer(t, a.pod, b.pod, b.podAddr())
			echo(t, a.pod, b.pod, b.podAddr())
			echo(t, a.NS, b.pod, b.podAddr())
			transfer(t, a.NS, b.pod, b.podAddr())
			table := ds[0].core.forwarding.Load()
			if got := table.entries[0].Peer.MTU(); got != 1250 {
				t.Errorf("path takes packets of %d bytes, want 1250", got)
			}
			if ds[0].Stats().Drops[dataplane.DropTooBig] == 0 {
				t.Error("nothing was too big")
			}
			ds[0].port.refresh(table)
			if got := table.entries[0].Peer.MTU(); got != 1250 {
				t.Errorf("after refresh %d", got)
			}
			t.Logf("%+v", ds[0].Stats())
		})
	}
}

// TestPathMTUOverIPv6 has a router on the way that takes 1400 bytes, less than the
// overlay's MTU and its overhead, or 1300: then not even the least packet that every
// IPv6 host may send gets through whole, and the underlay has to fragment it.
func TestPathMTUOverIPv6(t *testing.T) {
	t.Parallel()
	for _, mtu := range []int{1400, 1300} {
		for _, offloads := range []Offloads{AllOffloads, 0} {
			t.Run(fmt.Sprintf("%d/%s", mtu, offloads), func(t *testing.T) {
				t.Parallel() // hosts of its own
				a, b := newRoutedHosts(t, mtu)
				for i, h := range []*testHost{a, b} {
					h.offloads = offloads
					h.under = []netip.Addr{netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(i), 15: 2})}
				}
				d := connect(a, b, false)
				for _, dst := range []netip.Addr{b.podAddr(), b.podAddr6()} {
					transfer(t, a.pod, b.pod, dst)
					echo(t, a.pod, b.pod, dst)
					transfer(t, a.NS, b.pod, dst)
				}
				table := d.core.forwarding.Load()
				if got, want := table.entries[0].Peer.MTU(), mtu-70; got != want {
					t.Errorf("path takes packets of %d bytes, want %d", got, want)
				}
				if d.Stats().Drops[dataplane.DropTooBig] == 0 {
					t.Error("nothing was too big")
				}
				d.port.refresh(table)
				if got := table.entries[0].Peer.MTU(); got != mtu-70 {
					t.Errorf("after refresh %d", got)
				}
				t.Logf("%+v", d.Stats())
			})
		}
	}
}

// TestPathMTUOfAnEncapsulatingRoute has a route that wraps what goes to the peer in another IPv6 header of 40 bytes and a segment of 24 (RFC 8754, RFC 8986):
// the kernel refuses what the link would take, before any packet has got through. What somebody has forged, so that the kernel notes less, is not believed.
func TestPathMTUOfAnEncapsulatingRoute(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		offloads Offloads
		forged   bool
	}{"offloads": {AllOffloads, false}, "plain": {0, false}, "forged": {0, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newRoutedHosts(t, 1500)
			for i, h := range []*testHost{a, b} {
				h.offloads = tt.offloads
				h.under = []netip.Addr{netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(i), 15: 2})}
				h.Must(func() error {
					return errors.Join(rtnl.SetSysctl("net/ipv6/conf/all/seg6_enabled", "1"), rtnl.SetSysctl("net/ipv6/conf/eth0/seg6_enabled", "1"))
				})
			}
			b.Run("ip", "-6", "addr", "add", "2001:db8:0:1::3/128", "dev", "eth0", "nodad")
			a.Run("ip", "-6", "route", "add", "2001:db8:0:1::2/128", "encap", "seg6", "mode", "encap", "segs", "2001:db8:0:1::3", "dev", "eth0", "via", "2001:db8::1")
			d := connect(a, b, false)
			if tt.forged {
				b.Must(func() error { return forgeTooBig(a.under[0], b.under[0], []uint16{testPort}) })
				eventually(t, "the kernel notes it", func() bool { return strings.Contains(a.Run("ip", "-6", "route", "get", "2001:db8:0:1::2"), "mtu 1280") })
			}
			transfer(t, a.pod, b.pod, b.podAddr())
			transfer(t, a.NS, b.pod, b.podAddr6())
			d.port.refresh(d.core.forwarding.Load())
			if got := d.core.forwarding.Load().entries[0].Peer.MTU(); got != 1500-64-70 {
				t.Errorf("path takes packets of %d bytes, want %d", got, 1500-64-70)
			}
		})
	}
}

// TestTooBigIsAnswered has a path that takes 1300 bytes.
func TestTooBigIsAnswered(t *testing.T) {
	tcp := func(n int) []byte { b := tcpPacket(podA, podB, 1, make([]byte, n)); mergeable(b); return b }
	super := superpacket(5000, 1398)
	fits := superpacket(5000, 1200)
	for name, test := range map[string]struct {
		packet   []byte
		o        encap.Offload
		answered bool
		sent     int // datagrams
	}{
		"small":               {packet: tcp(900), sent: 1},
		"large":               {packet: tcp(1350), answered: true},
		"may be fragmented":   {packet: udpPacket(podA, podB, 1, 2, make([]byte, 1350)), sent: 1},
		"v6":                  {packet: udpPacket(podA6, podB6, 1, 2, make([]byte, 1350)), answered: true},
		"superpacket":         {packet: dontFragment(super.IP()), o: super.Offload, answered: true},
		"small segments":      {packet: dontFragment(fits.IP()), o: fits.Offload, sent: 5},
		"ICMP error, no ICMP": {packet: dontFragment(packettest.IP(podA, podB, 1, append([]byte{3, 4}, make([]byte, 1350)...)))},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testPairOf(t, AllOffloads)
			w := dataplane.Wanted{MTU: testMTU, Peers: []dataplane.Peer{{VTEP: b.VTEPs()[0], Subnets: []netip.Prefix{subnetB, subnetB6}}}}
			if err := a.Sync(w); err != nil {
				t.Fatal(err)
			}
			a.core.forwarding.Load().entries[0].Peer.SetMTU(1300)
			var answers [][]byte
			a.OnPacket = func(p []byte) { answers = append(answers, bytes.Clone(p)) }
			sent := len(encapsulateOffload(a, test.o, test.packet))
			if sent != test.sent || (len(answers) == 1) != test.answered {
				t.Fatalf("%d datagrams sent, answers %x", sent, answers)
			}
			if test.answered && !bytes.Contains(answers[0], []byte{1300 >> 8, 1300 & 0xff}) {
				t.Errorf("the answer does not name 1300 bytes: %x", answers[0])
			}
			if s := a.Stats(); s.TxPackets+s.Drops[dataplane.DropTooBig] != 1 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

func dontFragment(b []byte) []byte {
	b = bytes.Clone(b)
	b[6] |= 0x40
	return b
}

// TestAnswersAreLimited sends a burst of packets that are too big.
func TestAnswersAreLimited(t *testing.T) {
	a, b := testPairOf(t, AllOffloads)
	w := dataplane.Wanted{MTU: testMTU, Peers: []dataplane.Peer{{VTEP: b.VTEPs()[0], Subnets: []netip.Prefix{subnetB}}}}
	if err := a.Sync(w); err != nil {
		t.Fatal(err)
	}
	a.core.forwarding.Load().entries[0].Peer.SetMTU(1300)
	answers := 0
	a.OnPacket = func([]byte) { answers++ }
	p := tcpPacket(podA, podB, 1, make([]byte, 1350))
	mergeable(p)
	a.Load(p)
	start := time.Now()
	a.Send(10000)
	if most := int(time.Since(start)/answerInterval) + 1; answers == 0 || answers > most {
		t.Errorf("%d answers, want 1 to %d", answers, most)
	}
}
