package sysctl

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// asymmetric is a host, and a peer that sends to it by eth0 and gets its answers by eth1.
func asymmetric(t *testing.T, onLink bool) (host, peer *netnstest.NS) {
	t.Helper()
	host, peer = netnstest.New(t), netnstest.New(t)
	netnstest.Link(host, "eth0", peer, "eth0")
	netnstest.Link(host, "eth1", peer, "eth1")
	if onLink {
		host.Addr("eth0", "192.0.2.2/24")
	} else {
		host.Addr("eth0", "192.0.2.2/32")
	}
	peer.Addr("eth0", "192.0.2.3/24")
	host.Run("ip", "route", "add", "192.0.2.3/32", "dev", "eth1")
	// Without an entry the host would have to answer, which it does not.
	mac := strings.Fields(host.Run("ip", "-br", "link", "show", "eth0"))[2]
	peer.Run("ip", "neigh", "add", "192.0.2.2", "lladdr", mac, "dev", "eth0")
	host.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter")
	return host, peer
}

// knock sends a datagram to the host.
func knock(t *testing.T, peer *netnstest.NS) {
	t.Helper()
	peer.Must(func() error {
		c, err := net.Dial("udp4", "192.0.2.2:9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
}

// What the kernel drops because of its own route back is seen, named, and over once the sysctl is loose.
func TestWayBack(t *testing.T) {
	t.Parallel()
	host, peer := asymmetric(t, false)
	var b wayBack
	b.know([]dataplane.Peer{{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.3")}}, {VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.3")}},
		{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.9")}}, {VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("2001:db8::3")}}})
	now := time.Now()
	look := func(device string) (list []dataplane.Warning) {
		host.Must(func() error { list = b.look(now, device); return nil })
		return list
	}
	for end := time.Now().Add(patience); ; now = now.Add(askPeriod) {
		if got := look("eth0"); len(got) == 1 {
			want := "strict rp_filter on eth0 drops what peers send, because this host sends to them by another interface: to 192.0.2.3 by eth1"
			if got[0].ID != dataplane.WarnReturnPath || got[0].Text != want || got[0].Fix != "sysctl -w net.ipv4.conf.eth0.rp_filter=2, or make the routes to these peers lead to eth0" {
				t.Errorf("got %+v", got)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("not seen")
		}
		knock(t, peer)
	}
	if got := look(""); got != nil {
		t.Errorf("without an underlay: %+v", got)
	}
	host.Run("sh", "-c", "echo 2 > /proc/sys/net/ipv4/conf/eth0/rp_filter")
	if now = now.Add(askPeriod); look("eth0") != nil {
		t.Error("a loose rp_filter is taken for a strict one")
	}
}

// A peer on the link sends nothing that could be dropped, because it gets no answer to its ARP: it is named all the same.
func TestWayBackOnLink(t *testing.T) {
	t.Parallel()
	host, _ := asymmetric(t, true)
	var b wayBack
	b.know([]dataplane.Peer{{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.3")}}})
	host.Must(func() error {
		if got := b.look(time.Now(), "eth0"); len(got) != 1 {
			t.Errorf("got %+v", got)
		}
		return nil
	})
}

// A route that leads elsewhere is not a fault as long as nothing is dropped, and drops without such a route are not of peers.
func TestWayBackNeedsBoth(t *testing.T) {
	t.Parallel()
	host, peer := asymmetric(t, false)
	peers := []dataplane.Peer{{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.3")}}}
	quiet, other := wayBack{}, wayBack{}
	quiet.know(peers)
	other.know([]dataplane.Peer{{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.9")}}})
	now := time.Now()
	host.Must(func() error {
		if got := append(quiet.look(now, "eth0"), other.look(now, "eth0")...); got != nil {
			t.Errorf("got %+v", got)
		}
		return nil
	})
	knock(t, peer)
	host.Must(func() error {
		if got := other.look(now.Add(askPeriod), "eth0"); got != nil {
			t.Errorf("got %+v", got)
		}
		return nil
	})
}

// Detours asks for a bounded number of peers, and goes on where it ended.
func TestDetoursAreBounded(t *testing.T) {
	t.Parallel()
	host, _ := asymmetric(t, false)
	var peers []netip.Addr
	a := netip.MustParseAddr("192.0.2.3")
	for range maxAsked + 10 {
		peers, a = append(peers, netip.MustParseAddr("192.0.2.9")), a.Next()
	}
	peers[maxAsked+5] = netip.MustParseAddr("192.0.2.3")
	for from, want := range map[int]int{0: 0, maxAsked: 1} {
		host.Must(func() error {
			list, err := Detours("eth0", peers, from)
			if len(list) != want || want == 1 && list[0] != (Detour{peers[maxAsked+5], "eth1", false}) {
				t.Errorf("from %d: %+v", from, list)
			}
			return err
		})
	}
	host.Must(func() error {
		if _, err := Detours("none", peers, 0); err == nil {
			t.Error("no error for an interface that is not there")
		}
		return nil
	})
}

func TestIsStrict(t *testing.T) {
	t.Parallel()
	host, _ := asymmetric(t, false)
	for values, want := range map[string]bool{"0 0": false, "0 1": true, "1 0": true, "1 1": true, "2 1": false, "1 2": false} {
		host.Run("sh", "-c", "set "+values+"; echo $1 > /proc/sys/net/ipv4/conf/all/rp_filter; echo $2 > /proc/sys/net/ipv4/conf/eth0/rp_filter")
		host.Must(func() error {
			if got, err := IsStrict("eth0"); got != want || err != nil {
				t.Errorf("all and eth0 %s: %v, %v", values, got, err)
			}
			return nil
		})
	}
	host.Must(func() error {
		if _, err := IsStrict("none"); err == nil {
			t.Error("no error for an interface that is not there")
		}
		return nil
	})
}

func TestParseReturnPath(t *testing.T) {
	for text, want := range map[string]int{
		"TcpExt: A IPReversePathFilter B\nTcpExt: 1 7 2\nIpExt: C\nIpExt: 3\n": 7,
		"IpExt: C\nIpExt: 3\nTcpExt: IPReversePathFilter\nTcpExt: 9\n":         9,
		"": -1, "TcpExt: IPReversePathFilter\nTcpExt:\n": -1, "TcpExt: IPReversePathFilter\n": -1, "TcpExt: IPReversePathFilter\nTcpExt: x\n": -1,
	} {
		if got, err := parseReturnPath(text); (err != nil) != (want < 0) || want >= 0 && got != uint64(want) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	host := netnstest.New(t)
	host.Must(func() error { _, err := ReturnPathDrops(); return err })
}

// Forwarding that cannot be turned on is a warning of the status, with its id, as long as it is off.
func TestForwardingWarning(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		if err := readOnly("/proc/sys"); err != nil {
			return err
		}
		s, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 7, IPv4: true})
		if err != nil {
			return err
		}
		defer s.Close()
		if _, err := s.Sync(t.Context(), dataplane.Wanted{}); err != nil {
			return err
		}
		w := s.Status().Warnings
		if !slices.ContainsFunc(w, func(w dataplane.Warning) bool {
			return w.ID == dataplane.WarnForwarding && w.Fix == "sysctl -w net.ipv4.ip_forward=1 on the host, or docker run --sysctl net.ipv4.ip_forward=1"
		}) || len(w) != 1 {
			t.Errorf("warnings %+v", w)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ns.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	ns.Must(func() error {
		s, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 7, IPv4: true})
		if err != nil {
			return err
		}
		defer s.Close()
		if _, err := s.Sync(t.Context(), dataplane.Wanted{}); err != nil || len(s.Status().Warnings) > 0 {
			t.Errorf("warnings %+v, %v", s.Status().Warnings, err)
		}
		return nil
	})
}
