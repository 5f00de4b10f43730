package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// The networks of TestNetworksDoNotLeak, by name.
var leakNetworks = []struct {
	name, config string
	vni          uint32
}{
	{"red", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":11}}`, 11},
	{"blue", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":12}}`, 12},
}

// TestNetworksDoNotLeak: of 160 000 datagrams in two networks of one daemon (a million in make test-long), sent at a
// time, both ways and marked with their network's VNI, none comes out of a device or to a pod of
// the other. Others that have the addresses of the one network are sent into the other's
// device, and in userspace mode by a peer under the other's VNI: they arrive nowhere.
func TestNetworksDoNotLeak(t *testing.T) {
	alone(t) // its floods would fill the queues that the packets of other tests wait in
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, "")
			dirs := []string{t.TempDir(), t.TempDir()}
			for _, n := range leakNetworks {
				c.put("/coreos.com/network/"+n.name+"/config", n.config)
			}
			for i, h := range c.hosts {
				nft(t, h.NS, countLeaks)
				h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", mode,
					"--networks=red,blue", "--subnet-dir", dirs[i])
			}
			var pods [2][2]*pod // by network and host
			for i, n := range leakNetworks {
				for j, h := range c.hosts {
					h.daemon.waitLog("msg=ready network="+n.name, patience)
					pods[i][j] = h.on(dirs[j], n.name).pod(i, 0)
				}
				warmUp(t, pods[i][0], pods[i][1])
			}

			perFlood := int(numberFrom(t, "OVERLAYD_FLOOD", 40_000))
			var floods []*flood
			var wg sync.WaitGroup
			for i, n := range leakNetworks {
				for _, way := range [][2]*pod{{pods[i][0], pods[i][1]}, {pods[i][1], pods[i][0]}} {
					f, err := newFlood(way[0].NS, way[1].NS, way[1].addr, n.vni)
					if err != nil {
						t.Fatal(err)
					}
					defer f.close()
					floods = append(floods, f)
					wg.Go(func() { f.receive(perFlood) })
					wg.Go(f.send)
				}
			}
			cross := func() {
				for i, n := range leakNetworks {
					other := leakNetworks[1-i]
					victim := floods[2*(1-i)].server.LocalAddr().(*net.UDPAddr).AddrPort() // on host 1
					spoofed := pods[1-i][0].addr
					if err := c.hosts[0].cross(fmt.Sprint("flannel.", n.vni), victim, n.vni); err != nil {
						t.Errorf("%s into the device of %s: %v", other.name, n.name, err)
					}
					if mode == modeUserspace {
						if err := c.hosts[0].inject(c.hosts[1].addr, n.vni, spoofed, victim); err != nil {
							t.Errorf("%s under the VNI of %s: %v", other.name, n.name, err)
						}
					}
				}
			}
			cross()
			wg.Wait()
			cross() // the floods may have filled every queue on the way
			for _, f := range floods {
				if f.err != nil || f.received < perFlood || f.foreign > 0 {
					t.Errorf("network %d: %d datagrams received, %d of another network (%v)", f.mark, f.received, f.foreign, f.err)
				}
			}
			if mode == modeUserspace {
				c.hosts[0].checkDropped("no_route")
				c.hosts[1].checkDropped("bad_source")
			}
			for i, h := range c.hosts {
				right, _ := counter(h.NS, "inet", "leaks", "right")
				leaked, _ := counter(h.NS, "inet", "leaks", "leaked")
				t.Logf("host %d: %d packets out of their network's device", i, right)
				if right == 0 || leaked > 0 {
					t.Errorf("host %d: %d packets out of the other network's device", i, leaked)
				}
			}
		})
	}
}

// countLeaks counts what comes out of an overlay device, by whether the mark, the first
// 32 bits of the payload, is the device's VNI.
const countLeaks = `table inet leaks {
	counter right { }
	counter leaked { }
	chain in {
		type filter hook prerouting priority raw; policy accept;
		iifname "flannel.11" meta l4proto udp @th,64,32 11 counter name right
		iifname "flannel.12" meta l4proto udp @th,64,32 12 counter name right
		iifname "flannel.11" meta l4proto udp @th,64,32 12 counter name leaked
		iifname "flannel.12" meta l4proto udp @th,64,32 11 counter name leaked
	}
}`

// flood sends marked datagrams as fast as their receiver takes them.
type flood struct {
	mark           uint32
	server, client net.PacketConn
	window         chan struct{} // a token for each batch on the way, taken back by time if it was lost
	done           chan struct{} // closed when enough were received, or it has failed

	received, foreign int // by receive
	err               error
}

func newFlood(from, to *netnstest.NS, addr netip.Addr, mark uint32) (f *flood, err error) {
	f = &flood{mark: mark, window: make(chan struct{}, 16), done: make(chan struct{})}
	if err := to.Do(func() (err error) {
		f.server, err = net.ListenPacket("udp4", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		return nil, err
	}
	if err := from.Do(func() (err error) { f.client, err = net.ListenPacket("udp4", ":0"); return err }); err != nil {
		f.server.Close()
		return nil, err
	}
	holdMuch(f.server)
	return f, nil
}

func (f *flood) close() {
	f.server.Close()
	f.client.Close()
}

const floodBatch = 64

func (f *flood) send() {
	messages := make([]ipv4.Message, floodBatch)
	for i := range messages {
		payload := append(binary.BigEndian.AppendUint32(nil, f.mark), make([]byte, 60)...)
		messages[i] = ipv4.Message{Buffers: [][]byte{payload}, Addr: f.server.LocalAddr()}
	}
	conn := ipv4.NewPacketConn(f.client)
	for {
		select {
		case <-f.done:
			return
		case f.window <- struct{}{}:
		case <-time.After(20 * time.Millisecond): // some were lost
			select {
			case <-f.window:
			default:
			}
			continue
		}
		conn.WriteBatch(messages, 0) // what is refused is sent again, as another
	}
}

// receive returns when enough of the network's own datagrams have arrived, and a moment more
// has passed, or the time is up.
func (f *flood) receive(enough int) {
	defer close(f.done)
	messages := make([]ipv4.Message, floodBatch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, 128)}
	}
	conn := ipv4.NewPacketConn(f.server)
	f.server.SetReadDeadline(time.Now().Add(2 * time.Minute))
	for f.received < enough {
		n, err := conn.ReadBatch(messages, 0)
		if err != nil {
			f.err = err
			return
		}
		before := f.received / floodBatch
		for _, m := range messages[:n] {
			if m.N == 64 && binary.BigEndian.Uint32(m.Buffers[0]) == f.mark {
				f.received++
			} else {
				f.foreign++
			}
		}
		for range f.received/floodBatch - before {
			select {
			case <-f.window:
			default:
			}
		}
	}
}

const crossings = 1000

// cross sends marked datagrams into an overlay device, to an address of another network.
func (h *host) cross(device string, to netip.AddrPort, mark uint32) error {
	var conn net.PacketConn
	dial := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) {
			// What waits for a neighbour that nobody has must not keep the others from being sent.
			err = errors.Join(unix.BindToDevice(int(fd), device), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20))
		})
		return errors.Join(cerr, err)
	}}
	if err := h.Do(func() (err error) { conn, err = dial.ListenPacket(h.c.t.Context(), "udp4", ":0"); return err }); err != nil {
		return err
	}
	defer conn.Close()
	payload := append(binary.BigEndian.AppendUint32(nil, mark), make([]byte, 60)...)
	for range crossings {
		conn.WriteTo(payload, net.UDPAddrFromAddrPort(to)) // refused, or lost: both are right
	}
	return nil
}

// checkDropped ends the host's daemon and fails unless each network has dropped what
// crossed for that reason.
func (h *host) checkDropped(reason string) {
	h.c.t.Helper()
	h.daemon.stop(unix.SIGTERM)
	networks := 0
	for line := range strings.Lines(h.daemon.text()) {
		_, count, ok := strings.Cut(line, "drops_"+reason+"=")
		if !ok || !strings.Contains(line, "msg=stats") {
			continue
		}
		var n int
		if fmt.Sscan(count, &n); n < crossings/10 { // a queue on the way may be full all the same
			h.c.t.Errorf("%s has dropped %d of %d: %s", h.name, n, crossings, line)
		}
		networks++
	}
	if networks != len(leakNetworks) {
		h.c.t.Errorf("%s: %d networks have dropped what crossed:\n%s", h.name, networks, h.daemon.text())
	}
}

// inject sends VXLAN datagrams of a network with addresses of another, as only a
// peer with other intentions does.
func (h *host) inject(peer netip.Addr, vni uint32, from netip.Addr, to netip.AddrPort) error {
	var conn net.PacketConn
	if err := h.Do(func() (err error) {
		conn, err = h.pastGuard()
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	frame := vxlanFrame(dataplane.MAC(h.addr, vni), dataplane.MAC(peer, vni), vni)
	frame = append(frame, markedPacket(vni, from, to)...)
	for range crossings {
		if _, err := conn.WriteTo(frame, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 8472))); err != nil {
			return err
		}
	}
	return nil
}

// pastGuard returns a socket that the guard of its own host takes for overlayd's. It must be called in the host's namespace.
func (h *host) pastGuard() (net.PacketConn, error) {
	l := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, guard.DefaultMark) })
		return errors.Join(cerr, err)
	}}
	return l.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(h.addr, 0).String())
}

// vxlanFrame are the headers of a VXLAN payload that carries an IPv4 packet (RFC 7348 section 5).
func vxlanFrame(from, to encap.MAC, vni uint32) []byte {
	b := []byte{8, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}
	return append(append(append(b, to[:]...), from[:]...), 8, 0)
}

// markedPacket is an IPv4 packet with a marked UDP datagram.
func markedPacket(mark uint32, from netip.Addr, to netip.AddrPort) []byte {
	return datagramPacket(from, to, append(binary.BigEndian.AppendUint32(nil, mark), make([]byte, 60)...))
}
