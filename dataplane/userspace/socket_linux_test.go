package userspace

import (
	"github.com/overlayd/overlayd/encap"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// TestSocketsCarry sends with the sender to the receiver, over IPv4 and IPv6.
func TestSocketsCarry(t *testing.T) {
	for _, s := range []string{"127.0.0.1", "::1"} {
		t.Run(s, func(t *testing.T) {
			n := netnstest.New(t)
			addr := netip.MustParseAddr(s)
			snd, rcv := openSockets(t, n, addr)
			e := entryTo(netip.AddrPortFrom(addr, testPort))
			var c counters
			var d datagram
			for _, size := range []int{20, 1400, 60000} {
				p := blank(size)
				p.buf[encap.HeaderLen+size-1] = 42
				snd.Send(&p, e, false, &c)
				snd.Flush(&c)
				if err := rcv.Receive(&d, c.publish); err != nil {
					t.Fatal(err)
				}
				if len(d.buf) != encap.HeaderLen+size || d.buf[len(d.buf)-1] != 42 || d.from != addr {
					t.Errorf("sent %d bytes, got %d from %s", encap.HeaderLen+size, len(d.buf), d.from)
				}
			}
			p := blank(65535 - encap.HeaderLen)
			snd.Send(&p, e, false, &c)
			snd.Flush(&c)
			c.publish()
			var st dataplane.Stats
			c.addTo(&st.TxPackets, &st.TxBytes, &st)
			if st.TxPackets != 3 || st.TxBytes != 61420 || st.Drops[dataplane.DropTooBig] != 1 {
				t.Errorf("counted %+v", st)
			}
			p, idle := blank(1400), c.publish
			if n := testing.AllocsPerRun(100, func() { snd.Send(&p, e, false, &c); snd.Flush(&c); rcv.Receive(&d, idle) }); n != 0 {
				t.Errorf("%v allocations per packet", n)
			}
		})
	}
}

// blank returns a packet of size bytes that has an IPv4 header and nothing else.
func blank(size int) packet {
	b := ipPacket(podA, podB, 253, make([]byte, size-20)) // RFC 3692: for experiments
	return packet{buf: append(make([]byte, encap.HeaderLen), b...), at: encap.HeaderLen}
}

func openSockets(t *testing.T, n *netnstest.NS, addr netip.Addr) (*batcher, *udpReceiver) {
	t.Helper()
	var ports *sendSockets
	var rcvs []*udpReceiver
	log := slog.New(slog.DiscardHandler)
	n.Must(func() (err error) {
		if rcvs, _, err = openReceivers(log, netip.AddrPortFrom(addr, testPort), 1, AllOffloads); err != nil {
			return err
		}
		ports, err = openSendSockets(log, addr, AllOffloads, false)
		return err
	})
	t.Cleanup(func() { ports.close(); rcvs[0].close() })
	return newBatcher(newUDPTransmitter(ports, addr.Is6()), ports.limit()), rcvs[0]
}

// TestSourcePortsSpreadFlows shows that flows differ in their outer source port,
// and that one flow keeps its own.
func TestSourcePortsSpreadFlows(t *testing.T) {
	n := netnstest.New(t)
	addr := netip.MustParseAddr("127.0.0.1")
	snd, _ := openSockets(t, n, addr)
	var sink *net.UDPConn
	n.Must(func() (err error) {
		sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	defer sink.Close()
	sink.SetReadDeadline(time.Now().Add(5 * time.Second))
	e := entryTo(sink.LocalAddr().(*net.UDPAddr).AddrPort())
	ports := map[uint16]int{}
	for flow := range 64 {
		p := packet{buf: append(make([]byte, encap.HeaderLen), udpPacket(podA, podB, uint16(1000+flow), 53, []byte("x"))...), at: encap.HeaderLen}
		var first uint16
		for i := range 2 {
			snd.Send(&p, e, false, new(counters))
			snd.Flush(new(counters))
			_, from, err := sink.ReadFromUDPAddrPort(make([]byte, 2000))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = from.Port()
			} else if from.Port() != first {
				t.Errorf("flow %d came from port %d and then %d", flow, first, from.Port())
			}
		}
		ports[first]++
	}
	if len(ports) < sourcePorts*3/4 {
		t.Errorf("64 flows came from %d ports: %v", len(ports), ports)
	}
}

// TestOverrunIsCounted fills the receive buffer of a receiver that does not read.
func TestOverrunIsCounted(t *testing.T) {
	n := netnstest.New(t)
	addr := netip.MustParseAddr("127.0.0.1")
	snd, rcv := openSockets(t, n, addr)
	e := entryTo(netip.AddrPortFrom(addr, testPort))
	p := blank(60000)
	var c counters
	eventually(t, "an overrun", func() bool { snd.Send(&p, e, false, &c); snd.Flush(&c); return rcv.drops() > 0 })
	before := rcv.drops()
	rcv.close()
	if got := rcv.drops(); got != before {
		t.Errorf("%d drops after close, %d before", got, before)
	}
}

// TestBufferWithoutCapability shows what is left where SO_RCVBUFFORCE is refused.
func TestBufferWithoutCapability(t *testing.T) {
	n := netnstest.New(t)
	err := n.Do(func() error {
		if err := dropNetAdmin(); err != nil {
			return err
		}
		fd, err := udp.Open(netip.MustParseAddrPort("127.0.0.1:0"), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		size, err := udp.GrowBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
		if err != nil || size <= 0 {
			t.Errorf("buffer of %d bytes, %v", size, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
