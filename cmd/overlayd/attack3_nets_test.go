package main

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestAttack3HostAddressToPod: a program that has bound the host's own address reaches a pod of another host, as in flannel.
func TestAttack3HostAddressToPod(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		for _, masq := range []string{"--ip-masq", "--ip-masq=false"} {
			t.Run(mode+" "+masq, func(t *testing.T) {
				c := newCluster(t, 2, testNetwork)
				_, b := c.upPair([2]string{mode, mode}, masq)
				h := c.hosts[0]
				var s net.PacketConn
				b.Must(func() (err error) { s, err = net.ListenPacket("udp", ":7777"); return err })
				defer s.Close()
				go func() {
					buf := make([]byte, 1000)
					for {
						n, from, err := s.ReadFrom(buf)
						if err != nil {
							return
						}
						s.WriteTo(buf[:n], from)
					}
				}()
				for name, src := range map[string]netip.Addr{"underlay address": h.addr, "none": netip.IPv4Unspecified()} {
					err := h.Do(func() error {
						conn, err := net.DialUDP("udp", &net.UDPAddr{IP: src.AsSlice()}, &net.UDPAddr{IP: b.addr.AsSlice(), Port: 7777})
						if err != nil {
							return err
						}
						defer conn.Close()
						conn.Write([]byte("x"))
						conn.SetReadDeadline(time.Now().Add(time.Second))
						_, err = conn.Read(make([]byte, 10))
						return err
					})
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				p := h.overlayd("status", "--subnet-file", h.subnetFile, "-o", "json")
				p.wait(patience)
				for l := range strings.Lines(p.text()) {
					if strings.Contains(l, "plain_source") {
						t.Log(l)
					}
				}
			})
		}
	}
}

// TestAttack3TwoNetworks: what is in one network does not get into the other, in the kernel or not, on one port or two.
func TestAttack3TwoNetworks(t *testing.T) {
	for _, port := range []int{8472, 8473} {
		for _, modes := range [][2]string{{modeKernel, modeKernel}, {modeUserspace, modeUserspace}, {modeKernel, modeUserspace}, {modeUserspace, modeKernel}} {
			if port == 8472 && modes[0]+modes[1] != modeKernel+modeKernel {
				continue
			}
			t.Run(fmt.Sprint(port, modes), func(t *testing.T) {
				c := newCluster(t, 2, testNetwork)
				c.put("/second/config", fmt.Sprintf(`{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2,"Port":%d}}`, port))
				a, b := c.upPair([2]string{modes[0], modes[0]}, "--ip-masq")
				var second [2]*host
				for i, h := range c.hosts {
					two := *h
					second[i] = &two
					two.subnetFile = filepath.Join(t.TempDir(), "second.env")
					two.name = fmt.Sprint("second on ", h.name)
					two.up("--dataplane", modes[1], "--etcd-prefix", "/second", "--ip-masq")
				}
				x, y := second[0].pod(1, 0), second[1].pod(1, 0)
				warmUp(t, x, y)
				h, g := c.hosts[0], c.hosts[1]
				for _, n := range []*host{h, g} {
					n.Run("sysctl", "-wq", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0", "net.ipv4.conf.pod0.rp_filter=0", "net.ipv4.conf.pod1.rp_filter=0")
				}
				var arrived sync.Map
				for where, ns := range map[string]*netnstest.NS{"pod a": a.NS, "pod b": b.NS, "pod x": x.NS, "pod y": y.NS, "host 0": h.NS, "host 1": g.NS} {
					var s *net.UDPConn
					ns.Must(func() (err error) { s, err = net.ListenUDP("udp", &net.UDPAddr{Port: 9999}); return err })
					defer s.Close()
					go func() {
						buf := make([]byte, 2000)
						for {
							n, err := s.Read(buf)
							if err != nil {
								return
							}
							arrived.Store(string(buf[:n]), where)
						}
					}()
				}
				frame := func(vni byte, to netip.Addr, inner []byte) []byte {
					d := a3frame(to, inner)
					d[6] = vni
					return d
				}
				rs, ra, rx, ry, rg := a3open(c.under), a3open(a.NS), a3open(x.NS), a3open(y.NS), a3open(g.NS)
				_ = ra
				second1 := uint16(port)
				gw := func(z *host) netip.Addr { return z.gateway().Addr() }
				sends := map[string]func(name []byte){
					"stranger, vni 1 source of network 2": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, 8472, frame(1, h.addr, a3packet(y.addr, a.addr, 5, 9999, n))))
					},
					"stranger, vni 2 source of network 1": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, second1, frame(2, h.addr, a3packet(b.addr, x.addr, 5, 9999, n))))
					},
					"stranger, vni 2 to pod of network 1": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, second1, frame(2, h.addr, a3packet(y.addr, a.addr, 5, 9999, n))))
					},
					"stranger, vni 1 to pod of network 2": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, 8472, frame(1, h.addr, a3packet(b.addr, x.addr, 5, 9999, n))))
					},
					"stranger, vni 2 on port 1": func(n []byte) {
						rs.send(a3packet(netip.MustParseAddr("192.0.2.1"), h.addr, 5, 8472, frame(2, h.addr, a3packet(y.addr, x.addr, 5, 9999, n))))
					},
					"stranger, vni 1 on port 2": func(n []byte) {
						rs.send(a3packet(netip.MustParseAddr("192.0.2.1"), h.addr, 5, second1, frame(1, h.addr, a3packet(b.addr, a.addr, 5, 9999, n))))
					},
					"pod of 2 as pod of peer in 1, same host": func(n []byte) { rx.send(a3packet(b.addr, a.addr, 5, 9999, n)) },
					"pod of 2 to port of VTEP in 1": func(n []byte) {
						rx.send(a3packet(x.addr, g.addr, 5, 8472, frame(1, g.addr, a3packet(a.addr, b.addr, 5, 9999, n))))
					},
					"pod of 1 to port of VTEP in 2": func(n []byte) {
						ra.send(a3packet(a.addr, g.addr, 5, second1, frame(2, g.addr, a3packet(x.addr, y.addr, 5, 9999, n))))
					},
					"pod of 2 by the overlay to port 1 of the host": func(n []byte) {
						ry.send(a3packet(y.addr, gw(second[0]), 5, 8472, frame(1, h.addr, a3packet(b.addr, a.addr, 5, 9999, n))))
					},
					"pod of 2 by overlay to port 1, as VTEP": func(n []byte) {
						ry.send(a3packet(g.addr, gw(second[0]), 5, 8472, frame(1, h.addr, a3packet(b.addr, a.addr, 5, 9999, n))))
					},
					"pod of 2 by overlay to port 1 of underlay": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, second1, frame(2, h.addr, a3packet(g.addr, gw(second[0]), 5, 8472, frame(1, h.addr, a3packet(b.addr, a.addr, 5, 9999, n))))))
					},
					"network 1 in network 2, dev addr": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, second1, frame(2, h.addr, a3packet(y.addr, gw(second[0]), 5, 8472, frame(1, h.addr, a3packet(b.addr, a.addr, 5, 9999, n))))))
					},
					"network 2 in network 1, dev addr": func(n []byte) {
						rs.send(a3packet(g.addr, h.addr, 5, 8472, frame(1, h.addr, a3packet(b.addr, gw(h), 5, second1, frame(2, h.addr, a3packet(y.addr, x.addr, 5, 9999, n))))))
					},
					"host's process to port 1": func(n []byte) {
						rg.send(a3packet(netip.MustParseAddr("10.6.0.9"), h.addr, 5, 8472, frame(1, h.addr, a3packet(y.addr, a.addr, 5, 9999, n))))
					},
				}
				for name, send := range sends {
					for range 3 {
						send([]byte(name))
					}
				}
				time.Sleep(700 * time.Millisecond)
				for name := range sends {
					if where, ok := arrived.Load(name); ok {
						t.Errorf("%s: arrived at %v", name, where)
					}
				}
				// good traffic between pods of the networks on one host, and within each
				good := map[string]func(n []byte){
					"within 1":          func(n []byte) { ra.send(a3packet(a.addr, b.addr, 5, 9999, n)) },
					"within 2":          func(n []byte) { rx.send(a3packet(x.addr, y.addr, 5, 9999, n)) },
					"across, same host": func(n []byte) { rx.send(a3packet(x.addr, a.addr, 5, 9999, n)) },
				}
				for name, send := range good {
					send([]byte(name))
				}
				time.Sleep(300 * time.Millisecond)
				for name := range good {
					if _, ok := arrived.Load(name); !ok {
						t.Errorf("good traffic lost: %s", name)
					}
				}
			})
		}
	}
}
