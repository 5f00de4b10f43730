package carrier

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// pathHost is a host with one peer behind a router.
type pathHost struct {
	*netnstest.NS
	t       *testing.T
	peer    *netnstest.NS
	router  *netnstest.NS
	out     *sendSockets
	sender  Sender
	paths   *paths
	entries []Entry
	log     bytes.Buffer
}

func newPathHost(t *testing.T, family int) *pathHost {
	t.Helper()
	h := &pathHost{NS: netnstest.New(t), t: t, peer: netnstest.New(t), router: netnstest.New(t)}
	prefix := map[int][2]string{Family4: {"192.0.2.", "198.51.100."}, Family6: {"2001:db8:1::", "2001:db8:2::"}}[family]
	bits := map[int]string{Family4: "/24", Family6: "/64"}[family]
	for i, n := range []*netnstest.NS{h.NS, h.peer} {
		port := []string{"port0", "port1"}[i]
		netnstest.Link(h.router, port, n, "eth0")
		h.router.Addr(port, prefix[i]+"1"+bits)
		n.Addr("eth0", prefix[i]+"2"+bits)
		n.DefaultRoute(prefix[i] + "1")
	}
	h.router.Must(func() error {
		return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), rtnl.SetSysctl("net/ipv6/conf/all/forwarding", "1"),
			rtnl.SetSysctl("net/ipv4/icmp_ratelimit", "0"), rtnl.SetSysctl("net/ipv6/icmp/ratelimit", "0"))
	})
	to := netip.AddrPortFrom(netip.MustParseAddr(prefix[1]+"2"), testPort)
	h.entries = make([]Entry, 1)
	e := &h.entries[0]
	e.Self, e.Base = netip.MustParseAddr("10.42.1.0"), netip.MustParseAddr("10.42.2.0")
	e.Template = encap.NewTemplate(1, encap.MAC{2, 2}, encap.MAC{2, 1})
	NewPeer(to).Adopt(e, true)
	h.Must(func() error {
		out, err := openSendSockets(UDPConfig{Log: slog.New(slog.NewTextHandler(&h.log, nil)), Local: netip.AddrPortFrom(netip.MustParseAddr(prefix[0]+"2"), testPort), DF: true}, nil)
		if err != nil {
			return err
		}
		t.Cleanup(out.close)
		h.out, h.sender, h.paths = out, newBatcher(newUDPTransmitter(out, family == Family6), out.limit()), out.paths.Load()
		return nil
	})
	return h
}

// narrow gives the link behind the router an MTU.
func (h *pathHost) narrow(mtu int) {
	h.t.Helper()
	h.router.Must(func() error {
		l, err := netlink.LinkByName("port1")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, mtu)
	})
}

// until sends packets of full length and looks, until ok.
func (h *pathHost) until(what string, ok func() bool) {
	h.t.Helper()
	var c Counters
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("not within 10 s: %s; %+v", what, h.entries[0].Peer.path)
		}
		p := blank(h.full())
		h.sender.Send(&p, &h.entries[0], false, &c)
		h.sender.Flush(&c)
		c.Publish()
		h.paths.refresh(h.entries, h.full())
	}
}

// aged has what was learnt be as old as it may become.
func (h *pathHost) aged() { h.entries[0].Peer.path.next = time.Time{} }

// full is the MTU of the overlay.
func (h *pathHost) full() int { return 1500 - encap.Overhead(h.entries[0].Peer.Addr) }

func (h *pathHost) mtu() int { return h.entries[0].Peer.MTU() }

// TestPathIsTriedAgain: what was learnt is forgotten when the path has become wide, although the kernel remembers for ten
// minutes, and learnt again.
func TestPathIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, family := range []int{Family4, Family6} {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			h := newPathHost(t, family)
			narrow := 1300 - encap.Overhead(h.entries[0].Peer.Addr)
			h.narrow(1300)
			h.until("learnt", func() bool { return h.mtu() == narrow })
			if next := time.Until(h.entries[0].Peer.path.next); next < pathAge-10*time.Second {
				t.Errorf("tried again after %s", next)
			}
			h.aged()
			h.until("confirmed", func() bool { return h.entries[0].Peer.path.trial == 0 && !h.entries[0].Peer.path.next.IsZero() })
			if h.mtu() != narrow {
				t.Errorf("after a probe that was too long it takes %d", h.mtu())
			}
			h.narrow(1500)
			h.aged()
			h.until("forgotten", func() bool { return h.mtu() == 0 })
			h.narrow(1300)
			h.until("learnt again", func() bool { return h.mtu() == narrow })
			if lines := strings.Count(h.log.String(), "\n"); lines > 2 {
				t.Errorf("%d lines: %s", lines, &h.log)
			}
		})
	}
}

// TestPathWithoutPorts: a user of the host who has every UDP port does not keep a path that becomes narrow from being learnt.
func TestPathWithoutPorts(t *testing.T) {
	t.Parallel()
	for _, family := range []int{Family4, Family6} {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			h := newPathHost(t, family)
			narrow := 1300 - encap.Overhead(h.entries[0].Peer.Addr)
			for _, trial := range h.paths.trials {
				if err := trial.LeavePort(); err != nil {
					t.Fatal(err)
				}
			}
			free := h.TakePorts(t, "")
			h.narrow(1300)
			h.until("believed", func() bool { return h.mtu() == narrow })
			h.aged()
			h.until("believed again", func() bool { return !h.entries[0].Peer.path.next.IsZero() })
			if h.mtu() != narrow {
				t.Errorf("then it takes %d", h.mtu())
			}
			free()
			h.aged()
			h.until("proven", func() bool { return time.Until(h.entries[0].Peer.path.next) > pathAgeUnproven })
			h.narrow(1500)
			h.aged()
			h.until("forgotten", func() bool { return h.mtu() == 0 })
		})
	}
}

// TestPathBelowFloor: less than the floor is not believed, counted, and said once.
func TestPathBelowFloor(t *testing.T) {
	t.Parallel()
	h := newPathHost(t, Family4)
	h.narrow(1000)
	h.until("learnt", func() bool { return h.mtu() == DefaultMinPathMTU-50 })
	h.aged()
	h.until("confirmed", func() bool { return h.entries[0].Peer.path.trial == 0 && !h.entries[0].Peer.path.next.IsZero() })
	var counted dataplane.Stats
	(&udpCarrier{out: h.out, shield: openShield(Family4)}).AddTo(&counted)
	if counted.NarrowPaths != h.paths.below.Load() {
		t.Errorf("%d are in the counters, want %d", counted.NarrowPaths, h.paths.below.Load())
	}
	if n := strings.Count(h.log.String(), "not believed"); n != 1 || h.paths.below.Load() < 2 {
		t.Errorf("%d lines, counted %d: %s", n, h.paths.below.Load(), &h.log)
	}
}

// TestProbesOfPeersThatLeave: a peer that goes while its probe is out leaves a probe to those that come. There are only a few at a time.
func TestProbesOfPeersThatLeave(t *testing.T) {
	t.Parallel()
	h := newPathHost(t, Family6)
	h.narrow(1300)
	for range pathTrials + 1 { // the last one waits in vain if none is given back
		h.until("a probe is out", func() bool { return h.entries[0].Peer.path.trial != 0 })
		h.entries[0].Peer.path.until = time.Time{} // long ago
		h.paths.refresh(nil, h.full())             // of another network, or after a Sync without the peer
		if n := len(h.paths.idle); n != pathTrials {
			t.Fatalf("%d probes of %d are to be had after the peer has gone", n, pathTrials)
		}
		NewPeer(netip.AddrPortFrom(h.entries[0].Peer.Addr, testPort)).Adopt(&h.entries[0], true)
	}
	h.until("learnt", func() bool { return h.mtu() == 1300-encap.Overhead(h.entries[0].Peer.Addr) })
}

// TestRouteMTU: what this host is configured to send needs no proof, and no floor.
func TestRouteMTU(t *testing.T) {
	t.Parallel()
	for _, family := range []int{Family4, Family6} {
		h := newPathHost(t, family)
		over := encap.Overhead(h.entries[0].Peer.Addr)
		change := func(mtu int) {
			h.Must(func() error {
				return netlink.RouteReplace(&netlink.Route{Gw: h.gateway().AsSlice(), MTU: mtu})
			})
		}
		change(1200 + 80*family)
		h.until("as the route says", func() bool { return h.mtu() == 1200+80*family-over })
		change(0)
		h.until("as the link says", func() bool { h.entries[0].Peer.TurnAway(); return h.mtu() == 0 })
	}
}

func (h *pathHost) gateway() netip.Addr {
	if h.entries[0].Peer.Addr.Is4() {
		return netip.MustParseAddr("192.0.2.1")
	}
	return netip.MustParseAddr("2001:db8:1::1")
}

// TestRouterThatQuotesLittle: over IPv4 a report that quotes UDP's header only is believed if it comes about several probes, and
// none comes to other ports.
func TestRouterThatQuotesLittle(t *testing.T) {
	t.Parallel()
	for _, sprayed := range []bool{false, true} {
		t.Run(map[bool]string{false: "honest", true: "sprayed"}[sprayed], func(t *testing.T) {
			t.Parallel()
			h := newPathHost(t, Family4)
			local := netip.MustParseAddr("192.0.2.2")
			report := func(port uint16) {
				h.router.Must(func() error { return sendFragNeeded(local, h.entries[0].Peer.Addr, port, 1300) })
			}
			st := &h.entries[0].Peer.path
			port, err := udp.LocalAddr(h.out.fds[0])
			if err != nil {
				t.Fatal(err)
			}
			report(port.Port()) // the kernel notes it: that is a reason to look
			var last time.Time
			hints := 0
			h.until("three probes", func() bool {
				if st.trial != 0 && st.until != last {
					hints++
					report(h.paths.trials[st.trial-1].Port())
					if sprayed {
						report(h.paths.trials[h.paths.idle[0]-1].Port())
					}
				}
				last = st.until
				return hints > pathHints || h.mtu() != 0
			})
			if got := h.mtu(); (got == 1250) == sprayed {
				t.Errorf("sprayed %t: the path takes %d, after %d reports", sprayed, got, hints)
			}
		})
	}
}

// sendFragNeeded sends a forged ICMP message about a datagram between two addresses.
func sendFragNeeded(to, dst netip.Addr, port, mtu uint16) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	quoted := make([]byte, 28)
	quoted[0], quoted[9] = 0x45, 17
	quoted[2], quoted[3] = 1500>>8, 1500&0xff
	copy(quoted[12:], to.AsSlice())
	copy(quoted[16:], dst.AsSlice())
	quoted[20], quoted[21] = byte(port>>8), byte(port)
	quoted[22], quoted[23] = testPort>>8, testPort&0xff
	b := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	sum := ^encap.Sum(b, 0)
	b[2], b[3] = byte(sum>>8), byte(sum)
	return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// TestSharedSocketFragments: what leaves by the socket that receives, because every UDP port is taken, crosses a narrow path, although no path is known.
func TestSharedSocketFragments(t *testing.T) {
	t.Parallel()
	for _, family := range []int{Family4, Family6} {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			h := newPathHost(t, family)
			h.narrow(1300)
			var peer *net.UDPConn
			h.peer.Must(func() (err error) {
				peer, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.entries[0].Peer.Addr, testPort)))
				return err
			})
			defer peer.Close()
			cfg := h.out.cfg
			cfg.Segment = true
			var out *sendSockets
			h.Must(func() error {
				rs, _, err := openReceivers(cfg, cfg.Local, 1)
				if err != nil {
					return err
				}
				t.Cleanup(func() { closeAll(rs) })
				if out, err = openSendSockets(cfg, nil); err != nil {
					return err
				}
				return out.begin(rs[0].now, udp.ErrNoPort)
			})
			defer out.close()
			snd := newBatcher(newUDPTransmitter(out, family == Family6), out.limit())
			var c Counters
			b := make([]byte, 2000)
			for n, end := 0, time.Now().Add(10*time.Second); n < 20; {
				if time.Now().After(end) {
					t.Fatalf("%d datagrams have arrived", n)
				}
				for range 4 {
					p := blank(h.full())
					snd.Send(&p, &h.entries[0], false, &c)
				}
				snd.Flush(&c)
				for peer.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); ; n++ {
					size, from, err := peer.ReadFromUDPAddrPort(b)
					if err != nil {
						break
					}
					if size != encap.HeaderLen+h.full() || from.Port() != testPort {
						t.Errorf("%d bytes from %s", size, from)
					}
				}
			}
		})
	}
}
