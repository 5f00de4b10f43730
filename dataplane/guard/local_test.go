package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func overBoth(t *testing.T, test func(t *testing.T, w *world)) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("over IPv%d", 4+2*family6(v6)), func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, v6))
		})
	}
}

// TestTrafficPasses: packets of all sizes between pods and hosts are as without a guard.
func TestTrafficPasses(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		w.check(56, 1400, 1500, 8000)
	})
}

// check has pods and hosts exchange packets of these sizes, over the overlay and beside it.
func (w *world) check(sizes ...int) {
	w.t.Helper()
	a, b := w.hosts[0], w.hosts[1]
	for _, size := range sizes {
		for _, v6 := range []bool{false, true} {
			for name, err := range map[string]error{
				"pod to pod":   w.exchange(a.pod, a.podAddr(v6), b.podAddr(v6), size),
				"host to pod":  w.exchange(a.NS, a.overlay(v6), b.podAddr(v6), size),
				"pod to host":  w.exchange(b.pod, b.podAddr(v6), a.overlay(v6), size),
				"host to host": w.exchange(a.NS, a.overlay(v6), b.overlay(v6), size),
			} {
				if err != nil {
					w.t.Errorf("%s, IPv6 %v, %d bytes: %v", name, v6, size, err)
				}
			}
		}
		if err := w.exchange(a.NS, a.addr, b.addr, size); err != nil {
			w.t.Errorf("underlay, %d bytes: %v", size, err)
		}
	}
}

// TestSuperpackets: of datagrams that are sent at once the chain datagrams sees the first, and each is judged.
func TestSuperpackets(t *testing.T) {
	for name, check := range map[string]dataplane.SourceCheck{"strict": dataplane.SourceStrict, "overlay": dataplane.SourceOverlay} {
		t.Run(name, func(t *testing.T) { superpackets(t, func(c *Config) { c.Check = check }) })
	}
}

// TestSuperpacketsWithoutOrigins: on a kernel without a secmark what is no VTEP's is dropped, and traffic passes.
func TestSuperpacketsWithoutOrigins(t *testing.T) {
	superpackets(t, func(c *Config) { c.lackOrigins = true })
}

func superpackets(t *testing.T, config func(*Config)) {
	overBoth(t, func(t *testing.T, w *world) {
		w.config = config
		w.join()
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		a.Run("ip", "link", "del", a.device())
		a.sync() // the device is made again: the rules apply to that one
		w.check(100, 8000)
		// b is a VTEP, of which a process may use its port: it is the sender that is judged here.
		b.Must(func() error { _, err := Cleanup(1); return err })
		good := func(text string) []byte { // no shorter than those behind it
			return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, fmt.Appendf(nil, "%-50s", text)))
		}
		for name, k := range map[string]forged{
			"source of no peer":    {src: map[bool]netip.Addr{false: netip.MustParseAddr("8.8.8.8"), true: netip.MustParseAddr("2001:4860::8")}[w.v6], dst: a.podAddr(w.v6), why: dataplane.DropBadSource, outside: true},
			"source of the target": {src: a.podAddr(w.v6), dst: a.overlay(w.v6), why: dataplane.DropBadSource},
			"another VTEP's pod":   {src: c.podAddr(w.v6), dst: a.podAddr(w.v6), why: dataplane.DropBadSource, ofVTEP: true},
			"another's, to a host": {src: c.podAddr(w.v6), dst: a.overlay(w.v6), why: dataplane.DropBadSource, ofVTEP: true},
			"VTEP that is another": {src: c.addr, dst: a.podAddr(w.v6), why: dataplane.DropBadSource, ofVTEP: true, outside: true},
			"pod of the other IP":  {src: c.podAddr(!w.v6), dst: a.podAddr(!w.v6), why: dataplane.DropBadSource, ofVTEP: true},
			"to another pod":       {src: b.podAddr(w.v6), dst: c.podAddr(w.v6), why: dataplane.DropBadDestination},
			"to the underlay":      {src: b.podAddr(w.v6), dst: a.addr, why: dataplane.DropBadDestination},
		} {
			if k.ofVTEP && a.guard.cfg.noOrigins || k.outside && a.guard.cfg.Check == dataplane.SourceOverlay {
				continue
			}
			name = fmt.Sprintf("%-22s", name) // all of one length
			w.expect(name, a, k.why, func(text []byte) {
				bad := a.frame(1, packet(k.src, k.dst, 1, receivePort, text))
				if err := sendSegments(b.NS, b.addr, a.addr, good("good, before "+name), bad); err != nil {
					t.Fatal(err)
				}
			})
			eventually(t, "the first arrives", func() bool { return w.place(fmt.Sprintf("%-50s", "good, before "+name)) != "" })
		}
		for _, tags := range [][]uint16{nil, {unix.ETH_P_8021Q}, {unix.ETH_P_8021Q, unix.ETH_P_8021Q}, {unix.ETH_P_8021AD, unix.ETH_P_8021Q}, {unix.ETH_P_8021Q, unix.ETH_P_8021Q, unix.ETH_P_8021Q}} {
			for to, dst := range map[string]netip.Addr{"a pod": a.podAddr(w.v6), "the underlay": a.addr, "another host": c.podAddr(w.v6)} {
				w.expect(fmt.Sprintf("hidden behind another network's, tags %x, to %s", tags, to), a, dataplane.DropUnknownVTEP, func(text []byte) {
					bad := a.tagged(tags, packet(b.podAddr(w.v6), dst, 1, receivePort, text))
					if err := sendSegments(w.stranger, w.strange, a.addr, a.frame(99, bad[22:]), bad); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	})
}

// TestHiddenHeaders: behind a datagram of a VTEP not even a header with the source of another host's pod is hidden, and those alone arrive that have a good one.
func TestHiddenHeaders(t *testing.T) {
	const protocol = 253 // for experiments (RFC 3692)
	w := newWorld(t, false)
	w.join()
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	b.Must(func() error { _, err := Cleanup(1); return err }) // its processes may send as it does
	var raw *net.IPConn
	a.pod.Must(func() (err error) {
		raw, err = net.ListenIP(fmt.Sprint("ip4:", protocol), &net.IPAddr{IP: a.podAddr(false).AsSlice()})
		return err
	})
	defer raw.Close()
	arrives := func() netip.Addr {
		raw.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, from, err := raw.ReadFromIP(make([]byte, 100))
		if err != nil {
			t.Fatal(err)
		}
		at, _ := netip.AddrFromSlice(from.IP.To4())
		return at
	}
	for n := range 12 {
		header := func(from *host) []byte {
			return a.frame(1, ipPacket(from.podAddr(false), a.podAddr(false), protocol, make([]byte, n)))
		}
		before := w.total(a)
		if err := sendSegments(b.NS, b.addr, a.addr, header(b), header(c)); err != nil {
			t.Fatal(err)
		}
		dropped := uint64(1)
		if n < 4 { // the first is as short as what could be hidden
			dropped = 2
		} else if at := arrives(); at != b.podAddr(false) {
			t.Errorf("%d bytes: the first is from %s", n, at)
		}
		eventually(t, "what is behind it is dropped", func() bool { return w.total(a) == before+dropped })
		sendRaw(w.stranger, packet(b.addr, a.addr, 1, testPort, header(b)))
		if at := arrives(); at != b.podAddr(false) {
			t.Errorf("%d bytes: one from %s arrives", n, at)
		}
	}
}

// TestTunnelInTunnel: who may send inside the overlay in the name of a VTEP, as its own processes may, or in a superpacket, does not
// have another datagram of the overlay taken for that VTEP's.
func TestTunnelInTunnel(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		inside := func(text []byte) []byte {
			return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		}
		hidden := func(d []byte) []byte { return a.frame(99, d[22:]) }
		for name, to := range map[string]netip.Addr{"to the device": a.overlay(w.v6), "to the gateway of pods": a.overlay(w.v6).Next()} {
			w.expect("a process, by the overlay "+name, a, dataplane.DropBadDestination, func(text []byte) {
				sendSegments(b.NS, b.addr, to, inside(text))
			})
			w.expect("a process, by the overlay, behind another VNI "+name, a, dataplane.DropBadDestination, func(text []byte) {
				d := inside(text)
				sendSegments(b.NS, b.addr, to, hidden(d), d)
			})
		}
		for n := range 64 { // up to the shortest that can hold a packet
			short := inside(nil)[:min(n, len(inside(nil)))]
			w.expect(fmt.Sprintf("a pod, %d bytes", n), a, dataplane.DropBadDestination, func([]byte) {
				sendRaw(b.pod, packet(b.podAddr(w.v6), a.overlay(w.v6), 1, testPort, short))
			})
		}
		w.expect("a stranger, behind another VNI", a, dataplane.DropUnknownVTEP, func(text []byte) {
			d := a.frame(1, packet(b.addr, a.overlay(w.v6).Next(), 1, testPort, inside(text)))
			sendSegments(w.stranger, w.strange, a.addr, hidden(d), d)
		})
	})
}

// TestTranslated: where a host translates addresses, so that packets become datagrams of the overlay behind the guard, they bring nothing in, whatever secmark
// they had before.
func TestTranslated(t *testing.T) {
	for name, config := range map[string]func(*Config){"": nil, "labels": func(c *Config) { c.labels = true }, "no secmark": func(c *Config) { c.lackOrigins = true }} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = config
				w.join()
				a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
				const here, there, beside = 5300, 5301, 5302 // lead to the port of a: the first on a, the second on b; the third to another port of a
				for port, h := range map[int]*host{here: a, there: b, beside: b} {
					to := netip.AddrPortFrom(a.addr, map[bool]uint16{false: testPort, true: 4000}[port == beside])
					h.Run("nft", fmt.Sprintf("add table inet services; add chain inet services pre { type nat hook prerouting priority -100; };"+
						"add rule inet services pre meta nfproto %s udp dport %d dnat %s to %s;"+
						"add chain inet services post { type nat hook postrouting priority 100; }; add rule inet services post oifname eth0 masquerade",
						[]string{"ipv4", "ipv6"}[family6(w.v6)], port, []string{"ip", "ip6"}[family6(w.v6)], to))
				}
				send := func(from *netnstest.NS, src, to netip.Addr, port uint16, frame []byte) {
					sendRaw(from, packet(src, to, 3000, port, frame))
				}
				inside := func(src netip.Addr) func(text []byte) []byte {
					return func(text []byte) []byte { return a.frame(1, packet(src, a.podAddr(w.v6), 1, receivePort, text)) }
				}
				for of, src := range map[string]netip.Addr{"its own": b.podAddr(w.v6), "its host's": b.addr, "another host's": c.podAddr(w.v6)} {
					bad := inside(src)
					w.expect("a pod of another host, with an address of "+of, a, dataplane.DropUnknownVTEP, func(text []byte) {
						send(b.pod, b.podAddr(w.v6), a.overlay(w.v6), here, bad(text))
					})
					w.expect("a pod of another host, in fragments, with an address of "+of, a, dataplane.DropUnknownVTEP, func(text []byte) {
						for _, f := range fragments(packet(b.podAddr(w.v6), a.overlay(w.v6), 3000, here, bad(text)), 48) {
							sendRaw(b.pod, f)
						}
					})
					w.expect("a stranger, with an address of "+of, a, dataplane.DropUnknownVTEP, func(text []byte) {
						send(w.stranger, w.strange, a.addr, here, bad(text))
					})
					w.expect("through another host, with an address of "+of, b, dataplane.DropEgress, func(text []byte) {
						send(c.pod, c.podAddr(w.v6), b.overlay(w.v6), there, bad(text))
					})
					w.expect("through another host, to a port that the checksum may replace, with an address of "+of, b, dataplane.DropEgress, func(text []byte) {
						send(c.pod, c.podAddr(w.v6), b.overlay(w.v6), beside, bad(text))
					})
					w.expect("a stranger through another host, likewise, with an address of "+of, b, dataplane.DropEgress, func(text []byte) {
						send(w.stranger, w.strange, b.addr, beside, bad(text))
					})
					marks := map[string][]byte{"a VTEP": b.addr.AsSlice(), "what was judged": a.guard.cfg.judged()}
					if w.v6 {
						marks["a VTEP"] = native(originOf(b.addr, a.guard.cfg.seed))
					}
					for mark, value := range marks {
						secmarks(t, a.pod, value)
						w.expect("a pod with the secmark of "+mark+", with an address of "+of, a, dataplane.DropUnknownVTEP, func(text []byte) {
							send(a.pod, a.podAddr(w.v6), a.addr, here, bad(text))
						})
						a.pod.Run("nft", "flush", "ruleset")
					}
				}
				w.check(100, 8000)
			})
		})
	}
}

// TestPodsOfOneHost: a pod has no address of another host's pod towards its own host and the pods there.
func TestPodsOfOneHost(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				a, c := w.hosts[0], w.hosts[2]
				beside := netnstest.New(t)
				netnstest.Link(a.NS, "veth1", beside, "eth0")
				for _, v6 := range []bool{false, true} {
					addr := a.podAddr(v6).Next()
					whole := netip.PrefixFrom(addr, addr.BitLen()).String()
					beside.Addr("eth0", whole)
					beside.Run("ip", "route", "add", netip.PrefixFrom(a.podAddr(v6), addr.BitLen()).String(), "dev", "eth0")
					a.Run("ip", "route", "add", whole, "dev", "veth1")
					a.pod.Run("ip", "route", "add", whole, "via", a.overlay(v6).Next().String())
				}
				a.Run("sysctl", "-wq", "net.ipv4.conf.veth1.proxy_arp=1", "net.ipv6.conf.veth1.proxy_ndp=1", "net.ipv4.conf.veth1.rp_filter=0")
				a.Run("ip", "neigh", "add", "proxy", a.podAddr(true).String(), "dev", "veth1")
				a.listen(beside, "beside")
				for _, v6 := range []bool{false, true} {
					if err := w.exchange(a.pod, a.podAddr(v6), a.podAddr(v6).Next(), 100); err != nil {
						t.Error(err)
					}
					if err := w.exchange(a.pod, a.podAddr(v6), a.overlay(v6).Next(), 100); err != nil {
						t.Error(err)
					}
					for to, dst := range map[string]netip.Addr{"another pod": a.podAddr(v6).Next(), "the gateway": a.overlay(v6).Next(), "the device": a.overlay(v6)} {
						w.expect(fmt.Sprintf("a pod as another host's, IPv6 %v, to %s", v6, to), a, dataplane.DropBadSource, func(text []byte) {
							sendRaw(a.pod, packet(c.podAddr(v6), dst, 1, receivePort, text))
						})
					}
				}
				w.expect("a pod as another host's, to the underlay", a, dataplane.DropBadSource, func(text []byte) {
					sendRaw(a.pod, packet(c.podAddr(w.v6), a.addr, 1, receivePort, text))
				})
			})
		})
	}
}

// TestOtherKindsOfDevices: what pods are behind need not be a veth.
func TestOtherKindsOfDevices(t *testing.T) {
	w := newWorld(t, false)
	w.join()
	a, b, pod := w.hosts[0], w.hosts[1], netnstest.New(t)
	netnstest.Link(a.NS, "p0", pod, "eth0")
	a.Run("ip", "link", "add", "m0", "up", "link", "p0", "type", "macvlan", "mode", "bridge")
	a.Addr("m0", "10.77.0.1/24")
	a.Run("sysctl", "-wq", "net.ipv4.conf.m0.rp_filter=0")
	pod.Addr("eth0", "10.77.0.2/24")
	pod.DefaultRoute("10.77.0.1")
	if err := w.exchange(pod, netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1"), 100); err != nil {
		t.Fatal(err)
	}
	w.expect("in the name of a VTEP", a, dataplane.DropUnknownVTEP, func(text []byte) {
		sendRaw(pod, packet(b.addr, a.addr, 1, testPort, a.frame(1, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))))
	})
	w.expect("as another host's pod, where none of this host's are", a, dataplane.DropPlainSource, func(text []byte) {
		sendRaw(pod, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
	})
}

// TestNarrowPaths: no ICMP message makes the kernel believe that the path to a peer is narrower than that may be, wherever it comes from and
// whatever packet it quotes.
func TestNarrowPaths(t *testing.T) {
	w := newWorld(t, false)
	w.config = func(c *Config) { c.MinPathMTU = 1280 }
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	tooBig := func(to netip.Addr, mtu uint16, quoted []byte) []byte {
		m := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted[:min(len(quoted), 548)]...)
		binary.BigEndian.PutUint16(m[2:], ^onesSum(m, 0))
		return ipPacket(w.strange, to, unix.IPPROTO_ICMP, m)
	}
	mtuOf := func(to netip.Addr) string {
		_, mtu, _ := strings.Cut(a.Run("ip", "route", "get", to.String()), " mtu ")
		return strings.Join(strings.Fields(mtu)[:min(1, len(strings.Fields(mtu)))], "")
	}
	vxlan := packet(a.addr, b.addr, 40000, testPort, b.frame(1, packet(a.podAddr(false), b.podAddr(false), 1, 2, make([]byte, 600))))
	for name, quoted := range map[string][]byte{"of the overlay": vxlan, "with options": unusual(slices.Clone(vxlan)), "of a process": packet(a.addr, b.addr, receivePort, 7, make([]byte, 20))} {
		for _, mtu := range []uint16{0, 68, 552, 1279} {
			w.expect(fmt.Sprintf("%s, %d", name, mtu), a, dataplane.DropNarrowPath, func([]byte) { sendRaw(w.stranger, tooBig(a.addr, mtu, quoted)) })
		}
	}
	w.expect("through the overlay", a, dataplane.DropNarrowPath, func([]byte) {
		sendRaw(b.pod, ipPacket(b.podAddr(false), a.overlay(false), unix.IPPROTO_ICMP, tooBig(a.addr, 552, vxlan)[20:]))
	})
	for _, n := range []int{8, 24} {
		w.expect(fmt.Sprintf("in fragments, after %d bytes", n), a, dataplane.DropNarrowPath, func([]byte) {
			for _, f := range fragments(tooBig(a.addr, 552, vxlan), n) {
				sendRaw(w.stranger, f)
			}
		})
	}
	if got := mtuOf(b.addr); got != "" {
		t.Errorf("path MTU to the peer: %s", got)
	}
	sendRaw(w.stranger, tooBig(a.addr, 1300, vxlan))
	eventually(t, "a wider path is learnt", func() bool { return mtuOf(b.addr) == "1300" })
	w.check(100, 8000)
}

// TestNarrowPathsLeft: no ICMP message makes the kernel believe in a narrow path while a process forwards: it would remember the path for ten
// minutes, and may forward by then.
func TestNarrowPathsLeft(t *testing.T) {
	w := newWorld(t, false)
	w.config = func(c *Config) { c.MinPathMTU = 1280 }
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	a.Run("ip", "link", "del", a.device())
	a.guard.Forwards(false)
	a.guard.sync(t, a.NS, w.lastWanted(a))
	m := append([]byte{3, 4, 0, 0, 0, 0, 2, 0x28}, packet(a.addr, b.addr, 40000, testPort, make([]byte, 600))[:548]...)
	binary.BigEndian.PutUint16(m[2:], ^onesSum(m, 0))
	w.expect("552 bytes", a, dataplane.DropNarrowPath, func([]byte) { sendRaw(w.stranger, ipPacket(w.strange, a.addr, unix.IPPROTO_ICMP, m)) })
	if route := a.Run("ip", "route", "get", b.addr.String()); strings.Contains(route, "mtu") {
		t.Errorf("path to the peer: %s", route)
	}
}

// TestDisguised: a pod has the checksum, which is written behind all hooks, be the port of a VTEP.
func TestDisguised(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		b.Run("ethtool", "-K", "eth0", "tx-checksum-ip-generic", "off") // the kernel writes it, as a NIC does
		command, at := "ip", 20
		if w.v6 {
			command, at = "ip6", 40
		}
		b.Run("nft", "add table "+command+" masq; add chain "+command+" masq post { type nat hook postrouting priority 100; }; add rule "+command+" masq post oifname eth0 masquerade")
		for name, src := range map[string]netip.Addr{"a pod": b.podAddr(w.v6), "a pod in the name of a VTEP": w.hosts[2].addr} {
			w.expect(name, b, dataplane.DropEgress, func(text []byte) {
				p := packet(src, a.addr, 30000, 0, a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, append(text, make([]byte, len(text)%2)...))))
				binary.BigEndian.PutUint16(p[at+6:], 0)
				// What is at the port is summed up, too: it makes of the rest the complement of the port.
				rest := uint32(onesSum(p[at+2:], 0))
				seed := uint32(^uint16(testPort)) + 0xffff - rest
				binary.BigEndian.PutUint16(p[at+2:], uint16(seed>>16+seed&0xffff))
				header := binary.NativeEndian.AppendUint16([]byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0}, uint16(14+at+2)) // from the port on
				b.sendFrame(append(header, 0, 0), p)
			})
		}
		w.check(100)
	})
}

// TestOtherAddresses: what this host's pods and processes can send to another address of a VTEP than its public one, that VTEP does not take.
func TestOtherAddresses(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		second, container := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("172.17.0.5")
		command := "ip"
		if w.v6 {
			second, container, command = netip.MustParseAddr("2001:db8::77"), netip.MustParseAddr("fd99::5"), "ip6"
		}
		a.Addr("eth0", netip.PrefixFrom(second, 24+40*family6(w.v6)).String())
		b.Run("ethtool", "-K", "eth0", "tx-udp-segmentation", "off") // b's rules see the first datagram, and a's each one
		b.Run("nft", "add table "+command+" masq; add chain "+command+" masq post { type nat hook postrouting priority 100; }; add rule "+command+" masq post oifname eth0 masquerade")
		whole := netip.PrefixFrom(container, container.BitLen()).String()
		b.pod.Addr("lo", whole)
		b.Run("ip", "route", "add", whole, "dev", "veth0")
		datagram := func(text []byte) []byte {
			return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		}
		hidden := func(from *netnstest.NS, src, dst netip.Addr) func([]byte) {
			return func(text []byte) {
				d := datagram(text)
				if err := sendSegments(from, src, dst, a.frame(7, d[22:]), d); err != nil {
					t.Error(err)
				}
			}
		}
		sends := map[string]func([]byte){
			"a process, behind another VNI":    hidden(b.NS, b.addr, second),
			"a pod, behind another VNI":        hidden(b.pod, b.podAddr(w.v6), second),
			"a stranger in the name of a VTEP": func(text []byte) { sendRaw(w.stranger, packet(b.addr, second, 1, testPort, datagram(text))) },
		}
		if !w.v6 {
			sends["a process, to all, behind another VNI"] = hidden(b.NS, b.addr, netip.MustParseAddr("192.0.2.255"))
		}
		for name, send := range sends {
			w.expect(name, a, dataplane.DropBadDestination, send)
		}
		for name, src := range map[string]netip.Addr{"a container of another bridge": container, "a pod in the name of a VTEP": c.addr} { // masqueraded
			w.expect(name, b, dataplane.DropEgress, func(text []byte) { sendRaw(b.pod, packet(src, second, 1, testPort, datagram(text))) })
		}
		w.check(100)
	})
}

// TestEgress: processes and pods send nothing to the port of a VTEP, at none of its addresses, in no other name.
func TestEgress(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		second := netip.MustParseAddr("192.0.2.77")
		if w.v6 {
			second = netip.MustParseAddr("2001:db8::77")
		}
		a.Addr("eth0", netip.PrefixFrom(second, 24+40*family6(w.v6)).String())
		datagram := func(text []byte) []byte {
			return a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		}
		for _, to := range []netip.Addr{a.addr, second} {
			w.expect("a process, to "+to.String(), b, dataplane.DropEgress, func(text []byte) {
				if err := sendSegments(b.NS, b.addr, to, datagram(text)); !errors.Is(err, unix.EPERM) {
					t.Errorf("a process may send: %v", err)
				}
			})
			w.expect("a process, many at once, to "+to.String(), b, dataplane.DropEgress, func(text []byte) {
				if err := sendSegments(b.NS, b.addr, to, datagram(text), datagram(text)); !errors.Is(err, unix.EPERM) {
					t.Errorf("a process may send: %v", err)
				}
			})
			w.expect("a pod, to "+to.String(), b, dataplane.DropEgress, func(text []byte) {
				sendSegments(b.pod, b.podAddr(w.v6), to, datagram(text))
			})
		}
		w.expect("a pod in the name of a VTEP", b, dataplane.DropEgress, func(text []byte) {
			sendRaw(b.pod, packet(w.hosts[2].addr, a.addr, 1, testPort, datagram(text)))
		})
		why := dataplane.DropFragment
		if w.v6 {
			why = dataplane.DropEgress // they have been put together
		}
		w.expect("a pod, in fragments", b, why, func(text []byte) {
			for _, f := range fragments(packet(b.podAddr(w.v6), second, 1, testPort, datagram(text)), 8) {
				sendRaw(b.pod, f)
			}
		})
		w.expect("a process to its own host", a, dataplane.DropEgress, func(text []byte) {
			sendSegments(a.NS, a.addr, a.addr, datagram(text))
		})
		w.expect("a pod to its own host", a, dataplane.DropUnknownVTEP, func(text []byte) {
			sendSegments(a.pod, a.podAddr(w.v6), a.addr, datagram(text))
		})
		w.expect("a pod to its own host in the name of a VTEP", a, dataplane.DropUnknownVTEP, func(text []byte) {
			sendRaw(a.pod, packet(b.addr, a.addr, 1, testPort, datagram(text)))
		})
		w.expect("another network's port is free", b, dataplane.DropEgress, func(text []byte) {
			other := a.frame(7, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, []byte("x")))
			if err := sendSegments(b.NS, b.addr, w.strange, other); errors.Is(err, unix.EPERM) {
				t.Error("a process may not send in another network")
			}
			sendSegments(b.NS, b.addr, w.strange, datagram(text))
		})
	})
}

// TestFragmentsToTheSamePort: a datagram of a pod to the VXLAN port of a host outside, which is not of this network, arrives in fragments too. Nothing
// else here puts fragments together.
func TestFragmentsToTheSamePort(t *testing.T) {
	w := newWorld(t, false)
	w.join()
	a := w.hosts[0]
	w.stranger.Run("ip", "route", "add", a.subnets()[0].String(), "via", a.addr.String())
	var c *net.UDPConn
	w.stranger.Must(func() (err error) { c, err = net.ListenUDP("udp", &net.UDPAddr{Port: testPort}); return err })
	defer c.Close()
	for _, first := range []int{24, 400} {
		for _, f := range fragments(packet(a.podAddr(false), w.strange, 5, testPort, make([]byte, 1000)), first) {
			sendRaw(a.pod, f)
		}
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, _, err := c.ReadFrom(make([]byte, 2000)); n != 1000 {
			t.Errorf("%d bytes first: %d bytes arrive, %v; dropped %v", first, n, err, a.dropped())
		}
	}
}

// TestServices: where addresses are translated, as a Service of Kubernetes has it, processes reach pods of other hosts, and do not reach the
// port of a VTEP.
func TestServices(t *testing.T) {
	for name, config := range map[string]func(*Config){"by the device": nil, "by the mark": func(c *Config) { c.noIncoming = true }} {
		t.Run(name, func(t *testing.T) { overBoth(t, func(t *testing.T, w *world) { services(t, w, config) }) })
	}
}

func services(t *testing.T, w *world, config func(*Config)) {
	w.config = config
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	ip, pod, vtep := "ip", "172.30.0.1", "172.30.0.2"
	if w.v6 {
		ip, pod, vtep = "ip6", "fd30::1", "fd30::2"
	}
	to := func(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }
	none, node := netip.IPv4Unspecified(), netip.MustParseAddr("192.0.2.78")
	if w.v6 {
		none, node = netip.IPv6Unspecified(), netip.MustParseAddr("2001:db8::78")
	}
	b.Addr("eth0", netip.PrefixFrom(node, 24+40*family6(w.v6)).String())
	b.Run("nft", fmt.Sprintf(`add table %[1]s services
	add chain %[1]s services pre { type nat hook prerouting priority -100; }
	add chain %[1]s services post { type nat hook postrouting priority 100; }
	add rule %[1]s services pre %[1]s daddr %[8]s udp dport %[3]d dnat to %[4]s
	add chain %[1]s services out { type nat hook output priority -100; }
	add rule %[1]s services out %[1]s daddr %[2]s udp dport %[3]d dnat to %[4]s
	add rule %[1]s services out %[1]s daddr %[5]s udp dport { 53, %[6]d } dnat to %[7]s
	add rule %[1]s services post oifname %[9]s %[1]s saddr != %[10]s masquerade`, ip, pod, receivePort, to(a.podAddr(w.v6), receivePort), vtep, testPort, to(a.addr, testPort), node, b.device(), b.overlay(w.v6)))
	for name, err := range map[string]error{
		"a process and a pod":              w.exchange(b.NS, b.overlay(w.v6), netip.MustParseAddr(pod), 100),
		"a process and a pod, masqueraded": w.exchange(b.NS, none, netip.MustParseAddr(pod), 100),
		"a stranger and a pod":             w.exchange(w.stranger, w.strange, node, 100),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, port := range []int{53, testPort} {
		w.expect(fmt.Sprintf("a process to a VTEP by port %d", port), b, dataplane.DropEgress, func(text []byte) {
			b.Must(func() error {
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(vtep), uint16(port))))
				if err != nil {
					return err
				}
				defer c.Close()
				if _, err := c.Write(a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))); !errors.Is(err, unix.EPERM) {
					t.Errorf("a process may send: %v", err)
				}
				return nil
			})
		})
	}
}

// TestPlainAndSpoofed: the source of a pod comes neither without encapsulation nor from another host's pod.
func TestPlainAndSpoofed(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		for _, v6 := range []bool{false, true} {
			n := fmt.Sprintf("IPv%d: ", 4+2*family6(v6))
			if v6 == w.v6 {
				w.stranger.Run("ip", "route", "replace", testNetworks[family6(v6)].String(), "via", a.addr.String())
				plain := func(src, dst netip.Addr) func(text []byte) {
					return func(text []byte) { sendRaw(w.stranger, packet(src, dst, 1, receivePort, text)) }
				}
				w.expect(n+"plain, a peer's pod", a, dataplane.DropPlainSource, plain(b.podAddr(v6), a.podAddr(v6)))
				w.expect(n+"plain, own pod", a, dataplane.DropPlainSource, plain(a.podAddr(v6), a.overlay(v6)))
				w.expect(n+"plain, to be encapsulated", a, dataplane.DropPlainSource, plain(a.podAddr(v6), b.podAddr(v6)))
				if v6 {
					w.expect(n+"plain, to be encapsulated as from its host", a, dataplane.DropBadSource, plain(a.addr, b.podAddr(v6)))
				}
			}
			spoof := func(src, dst netip.Addr) func(text []byte) {
				return func(text []byte) { sendRaw(a.pod, packet(src, dst, 1, receivePort, text)) }
			}
			w.expect(n+"a pod with the source of another", a, dataplane.DropBadSource, spoof(c.podAddr(v6), b.podAddr(v6)))
			if v6 && w.v6 { // the kernel drops IPv4 itself
				w.expect(n+"a pod with the source of its host", a, dataplane.DropBadSource, spoof(a.addr, b.podAddr(v6)))
			}
			w.expect(n+"a pod with the source of its peer", a, dataplane.DropBadSource, spoof(b.podAddr(v6), b.overlay(v6)))
		}
		w.check(100)
	})
}

// TestDirectRoutes: with direct routes packets of peers come plainly, and those that no peer has do not. Pods send fragments
// of what is longer than the overlay's packets, of which the underlay would take some whole.
func TestDirectRoutes(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.config = func(c *Config) { c.Direct = true }
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		for _, h := range []*host{a, b} {
			o := map[*host]*host{a: b, b: a}[h]
			h.Run("ip", "route", "replace", o.subnets()[family6(w.v6)].String(), "via", o.addr.String())
		}
		for _, size := range []int{100, 1390, 1450, 1460, 8000} {
			for name, try := range map[string]func() error{
				"pod to pod":            func() error { return w.exchange(a.pod, a.podAddr(w.v6), b.podAddr(w.v6), size) },
				"pod to pod, back":      func() error { return w.exchange(b.pod, b.podAddr(w.v6), a.podAddr(w.v6), size) },
				"host to pod":           func() error { return w.exchange(a.NS, a.overlay(w.v6), b.podAddr(w.v6), size) },
				"pod to host":           func() error { return w.exchange(b.pod, b.podAddr(w.v6), a.addr, size) },
				"host's address to pod": func() error { return w.exchange(a.NS, a.addr, b.podAddr(w.v6), size) },
			} {
				err := try()
				if err != nil {
					t.Logf("%s, %d bytes, first: %v", name, size, err)
					err = try() // the first one may have told that the way to pods is narrow
				}
				if err != nil {
					t.Errorf("%s, %d bytes: %v", name, size, err)
				}
			}
		}
		unassigned := netip.MustParseAddr(map[bool]string{false: "10.42.200.1", true: "fd42:0:0:99::1"}[w.v6])
		w.stranger.Run("ip", "route", "replace", testNetworks[family6(w.v6)].String(), "via", a.addr.String())
		w.expect("a source of no peer", a, dataplane.DropPlainSource, func(text []byte) {
			sendRaw(w.stranger, packet(unassigned, a.podAddr(w.v6), 1, receivePort, text))
		})
		w.expect("the source of the target's pod", a, dataplane.DropPlainSource, func(text []byte) {
			sendRaw(w.stranger, packet(a.podAddr(w.v6), a.overlay(w.v6), 1, receivePort, text))
		})
		w.expect("a pod spoofs by the direct route", a, dataplane.DropBadSource, func(text []byte) {
			sendRaw(a.pod, packet(w.hosts[2].podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text))
		})
	})
}

// TestNetworkOverTheUnderlay: if the network holds the hosts, these go on as before, and pods are as safe as elsewhere.
func TestNetworkOverTheUnderlay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	w.wanted = func(v *dataplane.Wanted) {
		v.Networks, v.Underlay = prefixes("0.0.0.0/0"), prefixes("192.0.2.0/24", "8.8.8.8/32")
		v.Subnets = v.Subnets[:1]
		for i := range v.Peers {
			v.Peers[i].Subnets = v.Peers[i].Subnets[:1]
		}
		v.Peers[1].Subnets = append(v.Peers[1].Subnets, prefixes("192.0.0.0/16")...) // its route takes nothing away
	}
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	for name, err := range map[string]error{
		"pod to pod":            w.exchange(a.pod, a.podAddr(false), b.podAddr(false), 1000),
		"host to pod":           w.exchange(a.NS, a.overlay(false), b.podAddr(false), 1000),
		"host to host":          w.exchange(a.NS, a.addr, b.addr, 1000),
		"a stranger to a host":  w.exchange(w.stranger, w.strange, a.addr, 1000),
		"a host to a pod of it": w.exchange(a.NS, a.addr, a.podAddr(false), 1000),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, k := range w.kinds() {
		if k.src.Is4() && k.dst.Is4() {
			w.expect(k.name, a, k.why, func(text []byte) {
				sendRaw(w.stranger, packet(b.addr, a.addr, 1, testPort, a.frame(1, packet(k.src, k.dst, 1, receivePort, text))))
			})
		}
	}
	w.stranger.Run("ip", "route", "replace", "10.42.0.0/16", "via", a.addr.String())
	w.expect("plain", a, dataplane.DropPlainSource, func(text []byte) {
		sendRaw(w.stranger, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
	})
	w.expect("a pod spoofs", a, dataplane.DropBadSource, func(text []byte) {
		sendRaw(a.pod, packet(w.hosts[2].podAddr(false), b.podAddr(false), 1, receivePort, text))
	})
}

// TestGroupPolicy: with the group policy of VXLAN, which carries the mark of packets, they go on, and others may not send in the name of the host.
func TestGroupPolicy(t *testing.T) {
	for name, config := range map[string]func(*Config){
		"strict":           func(*Config) {},
		"inner":            func(c *Config) { c.Check = dataplane.SourceInner },
		"without secmarks": func(c *Config) { c.lackOrigins = true },
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = func(c *Config) { c.GBP = true; config(c) }
				w.join()
				w.checkGroupPolicy()
			})
		})
	}
}

func (w *world) checkGroupPolicy() {
	a, b := w.hosts[0], w.hosts[1]
	for _, h := range []*host{a, b} {
		h.Run("nft", fmt.Sprintf("add table inet groups; add chain inet groups out { type filter hook postrouting priority -400; }; add rule inet groups out oifname %q meta mark set 77", h.device()))
	}
	w.check(10, 1400, 8000)
	w.expect("a pod that has the checksum be the port", b, dataplane.DropEgress, func(text []byte) {
		d := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		d[0], d[3] = 0x88, 77
		sendRaw(b.pod, packet(b.podAddr(w.v6), a.addr, 1, testPort+1, d))
	})
}

// TestOtherNetworksAreLeftAlone: two networks on one port, each with its guard. What is of neither is counted.
func TestOtherNetworksAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	w.join()
	for _, h := range w.hosts {
		o := map[int]*host{0: w.hosts[1], 1: w.hosts[0], 2: w.hosts[0]}[h.index]
		h.Run("ip", "link", "add", "other", "type", "vxlan", "id", "77", "dstport", fmt.Sprint(testPort), "local", h.addr.String(), "remote", o.addr.String(), "dev", "eth0")
		h.Run("ip", "link", "set", "other", "up")
		h.Addr("other", fmt.Sprintf("172.31.0.%d/24", h.index+1))
	}
	for _, size := range []int{500, 8000} {
		if err := w.exchange(w.hosts[0].NS, netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("172.31.0.2"), size); err != nil {
			t.Error(err)
		}
	}
	w.check(500)
	h := w.hosts[0]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Do(func() error { return h.guard.Run(ctx, func() {}) }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	h.Run("ip", "link", "set", "other", "mtu", "1400") // it was made before the guard looked
	eventually(t, "the other network is known", func() bool {
		h.guard.mu.Lock()
		defer h.guard.mu.Unlock()
		return h.guard.others.equal(vnis{list: []uint32{77}})
	})
	drops := func() (n uint64) {
		h.Must(func() error { n = h.guard.Drops()[dataplane.DropBadVNI]; return nil })
		return n
	}
	before := drops()
	const many = 20
	for _, vni := range []uint32{77, 5} {
		if err := sendMany(w.stranger, w.strange, h.addr, many, h.frame(vni, []byte("nothing"))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "what is of no network is counted", func() bool { return drops() >= before+many })
	if n := drops() - before; n != many {
		t.Errorf("%d are counted, want %d", n, many)
	}
}
