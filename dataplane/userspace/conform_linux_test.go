package userspace

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// TestTUNConforms runs the suites of queue and writer over TUN devices. The other end is a program
// on the host, with a UDP socket and a packet socket.
func TestTUNConforms(t *testing.T) {
	for _, offloads := range []Offloads{0, TUNVnet, AllOffloads &^ TUNMultiqueue} {
		for _, headroom := range []int{encap.HeaderLen, 108} {
			t.Run(offloads.String(), func(t *testing.T) {
				h := newHost(t)
				h.offloads = offloads
				var host *tunHost
				h.Must(func() (err error) { host, err = openTUN(h.config(), headroom, h.config().locals()); return err })
				t.Cleanup(func() { host.close() })
				w := h.wanted()
				w.Subnets = []netip.Prefix{netip.PrefixFrom(podA, 32)}
				h.Must(func() error { _, _, err := host.sync(w); return err })
				q := host.queues()[0]
				conformWriter(t, q.newWriter(), h.taps(t, host.device.Name()))
				conformQueue(t, q, headroom, h.emits(t, host.device.Name()), h.taps(t, host.device.Name()))
			})
		}
	}
}

// TestWritersDoNotWait: a worker writes to the host while another one is in the middle of a write to the same queue.
func TestWritersDoNotWait(t *testing.T) {
	for _, offloads := range []Offloads{0, AllOffloads} {
		t.Run(offloads.String(), func(t *testing.T) {
			h := newHost(t)
			h.offloads = offloads
			var host *tunHost
			h.Must(func() (err error) { host, err = openTUN(h.config(), encap.HeaderLen, h.config().locals()); return err })
			t.Cleanup(func() { host.close() })
			conn, err := host.qs[0].source().SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			within, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
			go func() { ended <- conn.Write(func(uintptr) bool { close(within); <-end; return true }) }()
			<-within
			written := make(chan struct{})
			go func() {
				defer close(written)
				var c carrier.Counters
				p := &carrier.Packet{Buf: append(make([]byte, encap.HeaderLen), packettest.UDP(podB, podA, 1000, 2000, make([]byte, 100))...), At: encap.HeaderLen}
				var ip encap.IP
				if err := encap.ParseIP(p.IP(), &ip); err != nil {
					t.Error(err)
				}
				w := host.queues()[0].newWriter()
				w.Write(p, &ip, &c)
				w.Flush(&c)
				host.queues()[0].Answer(p)
			}()
			select {
			case <-written:
			case <-time.After(10 * time.Second):
				t.Error("a worker waits for another one")
			}
			close(end)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			<-written
		})
	}
}

// emits returns how to make the host send an IP packet through a device.
func (h *testHost) emits(t *testing.T, device string) feed {
	fd := h.packetSocket(t, device)
	return func(b []byte) {
		if err := unix.Sendto(fd, b, 0, h.linkAddr(t, device)); err != nil {
			t.Error(err)
		}
	}
}

// taps returns how to take what the host gets from a device, with its checksums completed.
func (h *testHost) taps(t *testing.T, device string) fetch {
	fd := h.packetSocket(t, device)
	return func() []byte {
		buf := make([]byte, carrier.MaxPacket)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				t.Error(err)
				return nil
			}
			b := bytes.Clone(buf[:n])
			var ip encap.IP
			if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING || encap.ParseIP(b, &ip) != nil || ip.Dst != podB && ip.Dst != podA {
				continue
			}
			if encap.IsPartial(b, &ip) {
				encap.CompleteChecksum(b, &ip)
			}
			return b
		}
	}
}

// packetSocket opens a socket for the IPv4 packets of a device.
func (h *testHost) packetSocket(t *testing.T, device string) (fd int) {
	t.Helper()
	h.Must(func() (err error) {
		const protocol = 0x0008 // ETH_P_IP in network byte order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol); err != nil {
			return err
		}
		tv := unix.Timeval{Sec: 5}
		return errors.Join(unix.Bind(fd, h.linkAddr(t, device)), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (h *testHost) linkAddr(t *testing.T, device string) *unix.SockaddrLinklayer {
	var index int
	if err := h.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	return &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: index}
}
