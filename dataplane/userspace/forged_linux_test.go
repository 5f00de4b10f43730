package userspace

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
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
				if err := unix.Sendto(fd, fragmentationNeeded(a.addr, b.addr, port, mtu), 0, &unix.SockaddrInet4{Addr: a.addr.As4()}); err != nil {
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
		all, err := os.ReadFile("/proc/thread-self/net/udp")
		for line := range strings.Lines(string(all)) {
			if local := strings.Fields(line)[1]; local != "local_address" {
				var port uint16
				if _, err := fmt.Sscanf(local[strings.Index(local, ":"):], ":%x", &port); err != nil {
					return err
				}
				ports = append(ports, port)
			}
		}
		return err
	})
	return ports
}

// fragmentationNeeded is the ICMP message (RFC 792, RFC 1191) that a router sends about a
// datagram from src to dst.
func fragmentationNeeded(src, dst netip.Addr, port, mtu uint16) []byte {
	quoted := udpPacket(src, dst, port, testPort, make([]byte, 1400))[:28]
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
			c, err := net.Dial("udp4", netip.AddrPortFrom(b.podAddr(), uint16(2000+flow)).String())
			if err != nil {
				return err
			}
			defer c.Close()
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			_ = raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
			})
			if err == nil {
				_, err = c.Write(make([]byte, size))
			}
			return err
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
