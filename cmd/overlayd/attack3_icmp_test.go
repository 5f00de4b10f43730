package main

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAttack3ICMP: no ICMP error that quotes a real datagram of the overlay costs a peer packets, nor makes them slow.
func TestAttack3ICMP(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		for _, df := range []string{"clear", "set"} {
			if mode == modeKernel && df == "set" {
				continue
			}
			t.Run(mode+" df "+df, func(t *testing.T) {
				c := newCluster(t, 2, testNetwork)
				a, b := c.upPair([2]string{mode, mode}, "--df", df)
				h, g := c.hosts[0], c.hosts[1]
				var fd int
				g.Must(func() (err error) {
					if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0x0008); err != nil {
						return err
					}
					tv := unix.Timeval{Sec: 3}
					return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
				})
				defer unix.Close(fd)
				there, back := startMeters(t, a, b)
				var quoted []byte
				buf := make([]byte, 2000)
				for quoted == nil {
					n, from, err := unix.Recvfrom(fd, buf, 0)
					if err != nil {
						t.Fatal(err)
					}
					if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
						continue
					}
					if n > 60 && buf[9] == 17 && binary.BigEndian.Uint16(buf[22:]) == 8472 && netip.AddrFrom4([4]byte(buf[12:16])) == h.addr {
						quoted = append([]byte{}, buf[:n]...)
					}
				}
				stranger := a3open(c.under)
				pod := a3open(a.NS)
				send := func(kind, code byte, rest uint32) {
					m := []byte{kind, code, 0, 0}
					m = binary.BigEndian.AppendUint32(m, rest)
					m = append(m, quoted[:min(len(quoted), 548)]...)
					binary.BigEndian.PutUint16(m[2:], a3sum(m))
					for _, s := range []struct {
						raw *a3raw
						src netip.Addr
					}{{stranger, netip.MustParseAddr("192.0.2.1")}, {stranger, g.addr}, {pod, a.addr}, {pod, netip.MustParseAddr("192.0.2.1")}, {pod, g.addr}} {
						n := 20 + len(m)
						p := []byte{0x45, 0, byte(n >> 8), byte(n), 0, 0, 0, 0, 64, 1, 0, 0}
						p = append(append(p, s.src.AsSlice()...), h.addr.AsSlice()...)
						binary.BigEndian.PutUint16(p[10:], a3sum(p))
						s.raw.send(append(p, m...))
					}
				}
				var stop atomic.Bool
				done := make(chan bool)
				go func() {
					defer close(done)
					for !stop.Load() {
						for code := range byte(16) {
							if code != 4 {
								send(3, code, 0)
							}
						}
						send(4, 0, 0)
						send(11, 0, 0)
						send(11, 1, 0)
						send(12, 0, 0x14000000)
						for _, mtu := range []uint32{0, 68, 552, 1279} {
							send(3, 4, mtu)
						}
						time.Sleep(5 * time.Millisecond)
					}
				}()
				time.Sleep(4 * time.Second)
				began := time.Now()
				if err := sendTCP(a.NS, b.NS, b.addr, 20<<20); err != nil {
					t.Error(err)
				}
				t.Logf("20 MB by TCP under fire took %v", time.Since(began))
				stop.Store(true)
				<-done
				if lost := there.finish() + back.finish(); lost > 0 {
					t.Errorf("%d datagrams lost", lost)
				}
				began = time.Now()
				if err := sendTCP(a.NS, b.NS, b.addr, 20<<20); err != nil {
					t.Error(err)
				}
				t.Logf("20 MB by TCP after took %v", time.Since(began))
				t.Log(h.Run("ip", "route", "get", g.addr.String()))
				p := h.overlayd("status", "--subnet-file", h.subnetFile)
				p.wait(patience)
				t.Log(p.text())
			})
		}
	}
}
