package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/compare/agent"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestAttacksAreDistinct: names are keys of the report.
func TestAttacksAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attackedOverlays() {
		for _, k := range a.attacks() {
			if seen[k.name] || !strings.HasPrefix(k.name, "attack/") || k.floor <= 0 {
				t.Errorf("%+v", k)
			}
			seen[k.name] = true
		}
	}
}

// testStage is a stage whose overlay is the underlay.
func testStage(t *testing.T) (context.Context, *stage) {
	t.Helper()
	netnstest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	s := &stage{pair: new(pair), mtu: 1500}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := s.build(ctx, filepath.Join(t.TempDir(), "stage")); err != nil {
		t.Fatal(err)
	}
	s.overlay = s.under
	return ctx, s
}

// TestStageMeasures: streams and packets of full length cross in both families, and nothing but what is sent.
func TestStageMeasures(t *testing.T) {
	ctx, s := testStage(t)
	for family := range 2 {
		if g, err := s.goodput(ctx, family, 100*time.Millisecond); err != nil || g <= 0 {
			t.Errorf("family %d: %v Gbit/s, %v", family, g, err)
		}
		if err := s.full(ctx, family); err != nil {
			t.Errorf("family %d: %v", family, err)
		}
	}
	s.mtu = 1501
	if err := s.full(ctx, 0); !errors.Is(err, unix.EMSGSIZE) && !strings.Contains(err.Error(), unix.EMSGSIZE.Error()) {
		t.Errorf("a packet that is too long: %v", err)
	}
}

// TestForgedICMPArrives: the target's kernel believes the messages, in both families.
func TestForgedICMPArrives(t *testing.T) {
	ctx, s := testStage(t)
	for family := range 2 {
		before := s.pathMTU(t, family)
		f := agent.ForgeICMP{To: s.under[0][family], About: s.under[1][family], Ports: []uint16{vxlanPort}}
		s.listenUDP(t, s.a, netip.AddrPortFrom(f.To, vxlanPort))
		var ports []uint16
		if err := s.a.call(ctx, "UDPPorts", agent.Nothing{}, &ports); err != nil || len(ports) == 0 {
			t.Errorf("ports %v, %v", ports, err)
		}
		var sent int
		if err := s.x.call(ctx, "ForgeICMP", f, &sent); err != nil || sent < 60999-32768 { // net.ipv4.ip_local_port_range
			t.Errorf("%d were sent, %v", sent, err)
		}
		err := s.a.await(ctx, "a narrow path", func() bool { return s.pathMTU(t, family) < before })
		if err != nil {
			t.Error(err)
		}
	}
}

// pathMTU is what host a believes of the path to host b.
func (s *stage) pathMTU(t *testing.T, family int) (mtu int) {
	t.Helper()
	err := s.a.ns.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.under[1][family], vxlanPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		level, option := unix.IPPROTO_IP, unix.IP_MTU
		if family == 1 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
		}
		var serr error
		err = raw.Control(func(fd uintptr) { mtu, serr = unix.GetsockoptInt(int(fd), level, option) })
		return errors.Join(err, serr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return mtu
}

func (s *stage) listenUDP(t *testing.T, h *host, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	if err := h.ns.Do(func() (err error) { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestFloodsArrive: each kind comes to the port as it is meant, with the source that it is meant to have.
func TestFloodsArrive(t *testing.T) {
	ctx, s := testStage(t)
	c := s.listenUDP(t, s.b, netip.AddrPortFrom(s.under[1][0], vxlanPort))
	for _, kind := range floodKinds() {
		f := kind.flood(s)
		f.To, f.Time = netip.AddrPortFrom(s.under[1][0], vxlanPort), 50*time.Millisecond
		var sent int64
		var group errgroup.Group
		group.Go(func() error { return s.x.call(ctx, "Flood", f, &sent) })
		b := make([]byte, 2000)
		ok := false
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		for !ok {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				t.Fatalf("%s: %v", kind.name, err)
			}
			ok = string(b[:n]) == string(f.Payload) && from.Addr() == f.From
		}
		if err := group.Wait(); err != nil || sent < 100 {
			t.Errorf("%s: %d were sent, %v", kind.name, sent, err)
		}
	}
}

// TestStageWithoutHost: a host that cannot be made is an error.
func TestStageWithoutHost(t *testing.T) {
	netnstest.RequireRoot(t)
	r := &run{dir: t.TempDir()}
	a := attackedOverlays()[0]
	if err := os.MkdirAll(filepath.Join(r.dir, "attack-0-overlayd-kernel", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.newStage(t.Context(), 0, a); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
}
