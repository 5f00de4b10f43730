package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// TestForgedICMPIsNotBelieved has a third host tell the first that the path to the second is
// narrow, for every source port there is: nothing is fragmented and no offload is given up.
func TestForgedICMPIsNotBelieved(t *testing.T) {
	hosts := newHosts(t, 3, testMTU)
	a, b, attacker := hosts[0], hosts[1], hosts[2]
	d := connect(a, b, false)
	ports := a.localPorts()
	if len(ports) < sourcePorts+2 {
		t.Errorf("the dataplane has the ports %v", ports)
	}
	attacker.Must(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, port := range ports {
			for _, mtu := range []uint16{68, 552, 600} {
				if err := unix.Sendto(fd, fragmentationNeeded(a.addr, b.addr, port, mtu, 8), 0, &unix.SockaddrInet4{Addr: a.addr.As4()}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	eventually(t, "the forged packets have arrived", func() bool { return a.snmp("Icmp", "InDestUnreachs") >= 3*len(ports) })
	before := a.snmp("Ip", "FragCreates")
	transfer(t, a.pod, b.pod, b.podAddr())
	if got := a.snmp("Ip", "FragCreates"); got != before {
		t.Errorf("%d fragments were made", got-before)
	}
	if s := d.Stats(); s.Offload.Fallbacks > 0 || s.Drops[dataplane.DropTooBig] > 0 {
		t.Errorf("counted %+v", s)
	}
}

// localPorts returns the UDP ports of h's sockets: those of its dataplane, and no others.
func (h *testHost) localPorts() (ports []uint16) {
	h.Must(func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/udp")
		v6, err6 := os.ReadFile("/proc/thread-self/net/udp6")
		all := append(v4, v6...)
		for line := range strings.Lines(string(all)) {
			if local := strings.Fields(line)[1]; local != "local_address" {
				var port uint16
				if _, err := fmt.Sscanf(local[strings.LastIndex(local, ":"):], ":%x", &port); err != nil {
					return err
				}
				ports = append(ports, port)
			}
		}
		return errors.Join(err, err6)
	})
	return ports
}

// TestForgedICMPWithDF is TestForgedICMPIsNotBelieved for senders that need to know the path: with DF, and over IPv6. The
// attacker knows all ports, sprays all that there may be, and quotes much or little. Packets of full length with DF pass meanwhile
// and afterwards, and no pod is told to send less.
func TestForgedICMPWithDF(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			t.Parallel()
			hosts := newDualHosts(t, 3, family)
			a, b, attacker := hosts[0], hosts[1], hosts[2]
			a.df, b.df = true, true
			d := connect(a, b, false)
			path, err := openKernelView(a)
			if err != nil {
				t.Fatal(err)
			}
			defer path.Close()
			echo(t, a.pod, b.pod, b.podAddr())
			to := udp.NewSockaddr(netip.AddrPortFrom(b.under[0], testPort))
			attacker.Must(func() error { return forgeTooBig(a.under[0], b.under[0], a.localPorts()) })
			eventually(t, "the kernel believes it", func() bool {
				mtu, err := path.MTU(&to)
				return err == nil && mtu < 1500
			})
			ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
			defer stop()
			for ctx.Err() == nil {
				attacker.Must(func() error { return forgeTooBig(a.under[0], b.under[0], everyPort()) })
				fullWithDF(t, a, b)
			}
			if s := d.Stats(); s.Offload.Fallbacks > 0 || s.Drops[dataplane.DropTooBig] > 0 {
				t.Errorf("counted %+v", s)
			}
			if mtu := d.core.forwarding.Load().entries[0].Peer.MTU(); mtu != 0 {
				t.Errorf("the path is said to take %d bytes", mtu)
			}
			transfer(t, a.pod, b.pod, b.podAddr())
			fullWithDF(t, a, b)
		})
	}
}

// openKernelView returns what shows the path MTUs that the kernel of h believes.
func openKernelView(h *testHost) (q *udp.PathProbe, err error) {
	err = h.Do(func() (err error) {
		q, err = udp.OpenPathProbe(h.under[0], 0)
		return err
	})
	return q, err
}

// everyPort returns the ports that Linux gives to sockets which bind none, in some order.
func everyPort() (ports []uint16) {
	for p := 32768; p < 61000; p++ {
		ports = append(ports, uint16(p))
	}
	rand.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	return ports
}

// forgeTooBig tells a that its datagrams from each of these ports to b are too long.
func forgeTooBig(a, b netip.Addr, ports []uint16) error {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var to unix.Sockaddr
	if a.Is4() {
		to = &unix.SockaddrInet4{Addr: a.As4()}
	} else {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		to = &unix.SockaddrInet6{Addr: a.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	mtus := []uint16{68, 552, 1280, 1300}
	for i, port := range ports {
		for j, quote := range []int{8, 500} {
			mtu := mtus[(i+j)%len(mtus)]
			m := fragmentationNeeded(a, b, port, mtu, quote)
			if a.Is6() {
				m = packetTooBig(a, b, port, max(mtu, 1280), quote)
			}
			if err := unix.Sendto(fd, m, 0, to); err != nil {
				return err
			}
			if len(ports) > 1000 {
				break // a router that quotes little: nobody who has not seen the datagram can quote more
			}
		}
	}
	return nil
}

// fullWithDF sends a packet of the overlay's MTU that nobody may fragment, from pod to pod.
func fullWithDF(t *testing.T, a, b *testHost) {
	t.Helper()
	var sink *net.UDPConn
	b.pod.Must(func() (err error) {
		sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.podAddr(), 0)))
		return err
	})
	defer sink.Close()
	full := make([]byte, a.mtu()-28)
	for range 10 { // the network may be flooded
		err := a.pod.Do(func() error { return sendUDP(sink.LocalAddr().String(), full, unix.IP_PMTUDISC_DO) })
		if err != nil {
			t.Fatalf("a pod does not send %d bytes: %v", a.mtu(), err)
		}
		sink.SetReadDeadline(time.Now().Add(time.Second))
		if n, err := sink.Read(make([]byte, 2000)); err == nil && n == len(full) {
			return
		}
	}
	t.Fatalf("a packet of %d bytes does not arrive", a.mtu())
}

// sendUDP sends a datagram by IPv4, with that IP_MTU_DISCOVER.
func sendUDP(to string, data []byte, discover int) error {
	c, err := net.Dial("udp4", to)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	_ = raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover)
	})
	if err == nil {
		_, err = c.Write(data)
	}
	return err
}

// packetTooBig is the ICMPv6 message (RFC 4443 section 3.2) that a router sends about a datagram from src to dst.
func packetTooBig(src, dst netip.Addr, port, mtu uint16, quote int) []byte {
	quoted := udpPacket(src, dst, port, testPort, make([]byte, 1400))[:40+quote]
	return append([]byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...) // the kernel adds the checksum
}

// fragmentationNeeded is the ICMP message (RFC 792, RFC 1191) that a router sends about a
// datagram from src to dst.
func fragmentationNeeded(src, dst netip.Addr, port, mtu uint16, quote int) []byte {
	quoted := udpPacket(src, dst, port, testPort, make([]byte, 1400))[:20+quote]
	b := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	binary.BigEndian.PutUint16(b[2:], ^slowSum(b))
	return b
}

// snmp reads a counter of the host's kernel from /proc/net/snmp.
func (h *testHost) snmp(group, name string) (n int) {
	h.tb.Helper()
	h.Must(func() error {
		all, err := os.ReadFile("/proc/thread-self/net/snmp")
		var names []string
		for line := range strings.Lines(string(all)) {
			fields := strings.Fields(line)
			if fields[0] != group+":" {
				continue
			}
			for i := range names {
				if names[i] == name {
					_, err = fmt.Sscan(fields[i], &n)
					return err
				}
			}
			names = fields
		}
		return err
	})
	return n
}

// TestFragmentIsOfOnePacket has a path turn out narrow, and one packet that is to be fragmented
// on it: the flows after it still leave by the ports that they hash to.
func TestFragmentIsOfOnePacket(t *testing.T) {
	for _, offloads := range []Offloads{AllOffloads &^ TUNMultiqueue, 0} {
		t.Run(offloads.String(), func(t *testing.T) {
			hosts := newHosts(t, 2, testMTU)
			a, b := hosts[0], hosts[1]
			a.df, a.offloads = true, offloads
			var sink *net.UDPConn
			b.Must(func() (err error) {
				sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.addr, testPort)))
				return err
			})
			defer sink.Close()
			b.vteps = []dataplane.VTEP{{Addr: b.addr, MAC: encap.MAC{2, 9}, VNI: testVNI}}
			d := a.open()
			a.sync(d, b)
			a.run(d)
			d.core.forwarding.Load().entries[0].Peer.SetMTU(1300)
			if n := portsOf64Flows(t, a, b, sink); n < sourcePorts*3/4 {
				t.Errorf("64 flows came from %d ports", n)
			}
		})
	}
}

// portsOf64Flows sends one packet that has to be fragmented, then 64 flows, and returns how many
// outer source ports these have.
func portsOf64Flows(t *testing.T, a, b *testHost, sink *net.UDPConn) int {
	t.Helper()
	ports := map[uint16]bool{}
	sink.SetReadDeadline(time.Now().Add(5 * time.Second))
	for flow := range 65 {
		size := 100
		if flow == 0 {
			size = 1380
		}
		a.pod.Must(func() error {
			return sendUDP(netip.AddrPortFrom(b.podAddr(), uint16(2000+flow)).String(), make([]byte, size), unix.IP_PMTUDISC_DONT)
		})
		for {
			buf := make([]byte, 2000)
			n, from, err := sink.ReadFromUDPAddrPort(buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == encap.HeaderLen+28+size { // not the host's own chatter
				if flow > 0 {
					ports[from.Port()] = true
				}
				break
			}
		}
	}
	return len(ports)
}

// BenchmarkForgedICMP is one TCP stream from pod to pod, before and after a third host has forged ICMP for the known ports and
// for all that there may be.
func BenchmarkForgedICMP(b *testing.B) {
	for _, family := range []int{4, 6} {
		for _, df := range []bool{false, true} {
			if family == 6 && !df {
				continue // nobody fragments there
			}
			b.Run(fmt.Sprintf("IPv%d/df=%t", family, df), func(b *testing.B) {
				hosts := newDualHosts(b, 3, family)
				from, to, attacker := hosts[0], hosts[1], hosts[2]
				from.df, to.df = df, df
				connect(from, to, false)
				const took = time.Second
				goodput(b, from, to, took)
				var before, after int64
				for range b.N {
					before += goodput(b, from, to, took)
					attacker.Must(func() error {
						return errors.Join(forgeTooBig(from.under[0], to.under[0], from.localPorts()), forgeTooBig(from.under[0], to.under[0], everyPort()))
					})
					after += goodput(b, from, to, took)
				}
				b.ReportMetric(float64(before*8)/float64(b.N)/float64(took.Nanoseconds()), "Gbit/s-before")
				b.ReportMetric(float64(after*8)/float64(b.N)/float64(took.Nanoseconds()), "Gbit/s-after")
			})
		}
	}
}
