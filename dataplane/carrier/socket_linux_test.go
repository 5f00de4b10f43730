package carrier

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// TestSocketsCarry sends with the sender to the receiver, over IPv4 and IPv6.
func TestSocketsCarry(t *testing.T) {
	for _, s := range []string{"127.0.0.1", "::1"} {
		t.Run(s, func(t *testing.T) {
			n := netnstest.New(t)
			addr := netip.MustParseAddr(s)
			snd, rcv := openSockets(t, n, addr)
			e := entryTo(netip.AddrPortFrom(addr, testPort))
			var c Counters
			var d Datagram
			for _, size := range []int{20, 1400, 60000} {
				p := blank(size)
				p.Buf[encap.HeaderLen+size-1] = 42
				snd.Send(&p, e, false, &c)
				snd.Flush(&c)
				if err := rcv.Receive(&d, c.Publish); err != nil {
					t.Fatal(err)
				}
				if len(d.Buf) != encap.HeaderLen+size || d.Buf[len(d.Buf)-1] != 42 || d.From != addr {
					t.Errorf("sent %d bytes, got %d from %s", encap.HeaderLen+size, len(d.Buf), d.From)
				}
			}
			p := blank(65535 - encap.HeaderLen)
			snd.Send(&p, e, false, &c)
			snd.Flush(&c)
			c.Publish()
			var st dataplane.Stats
			c.AddTo(&st.TxPackets, &st.TxBytes, &st)
			if st.TxPackets != 3 || st.TxBytes != 61420 || st.Drops[dataplane.DropTooBig] != 1 {
				t.Errorf("counted %+v", st)
			}
			p, idle := blank(1400), c.Publish
			if n := testing.AllocsPerRun(100, func() { snd.Send(&p, e, false, &c); snd.Flush(&c); rcv.Receive(&d, idle) }); n != 0 {
				t.Errorf("%v allocations per packet", n)
			}
		})
	}
}

// blank returns a packet of size bytes that has an IPv4 header and nothing else.
func blank(size int) Packet {
	b := packettest.IP(podA, podB, 253, make([]byte, size-20)) // RFC 3692: for experiments
	return Packet{Buf: append(make([]byte, encap.HeaderLen), b...), At: encap.HeaderLen}
}

func openSockets(t *testing.T, n *netnstest.NS, addr netip.Addr) (*batcher, *udpReceiver) {
	t.Helper()
	var ports *sendSockets
	var rcvs []*udpReceiver
	cfg := UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.AddrPortFrom(addr, testPort), Segment: true, GRO: true}
	n.Must(func() (err error) {
		if rcvs, _, err = openReceivers(cfg, cfg.Local, 1); err != nil {
			return err
		}
		ports, err = openSendSockets(cfg, nil)
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
		p := Packet{Buf: append(make([]byte, encap.HeaderLen), packettest.UDP(podA, podB, uint16(1000+flow), 53, []byte("x"))...), At: encap.HeaderLen}
		var first uint16
		for i := range 2 {
			snd.Send(&p, e, false, new(Counters))
			snd.Flush(new(Counters))
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
	var c Counters
	for deadline := time.Now().Add(10 * time.Second); rcv.drops() == 0; {
		if snd.Send(&p, e, false, &c); time.Now().After(deadline) {
			t.Fatal("no overrun within 10 s")
		}
		snd.Flush(&c)
	}
	before := rcv.drops()
	rcv.close()
	if got := rcv.drops(); got != before {
		t.Errorf("%d drops after close, %d before", got, before)
	}
}
