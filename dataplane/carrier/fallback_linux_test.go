package carrier

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// TestRefusedRunIsReplayed has the kernel refuse UDP_SEGMENT as older ones, and
// paths with a small MTU, do.
func TestRefusedRunIsReplayed(t *testing.T) {
	segmented := func(m *mmsghdr) int { return min(int(m.hdr.Iovlen), 1+int(m.hdr.Controllen)) }
	for name, test := range map[string]struct {
		refuse func(m *mmsghdr) unix.Errno
		limit  int32 // afterwards
		falls  uint64
	}{
		"nothing": {func(*mmsghdr) unix.Errno { return 0 }, 128, 0},
		"no checksum offload": {func(m *mmsghdr) unix.Errno {
			if segmented(m) > 1 {
				return unix.EIO
			}
			return 0
		}, 1, 1},
		"segments above the path's MTU, before Linux 6.14": {func(m *mmsghdr) unix.Errno {
			if m.hdr.Controllen > 0 {
				return unix.EINVAL
			}
			return 0
		}, 128, 2},
		"segments above the path's MTU": {func(m *mmsghdr) unix.Errno {
			if m.hdr.Controllen > 0 {
				return unix.EMSGSIZE
			}
			return 0
		}, 128, 2},
	} {
		t.Run(name, func(t *testing.T) { replay(t, test.refuse, test.limit, test.falls) })
	}
}

// replay sends two bursts by a sender whose system call is refused now and then,
// and wants every datagram to arrive, in order.
func replay(t *testing.T, refuse func(*mmsghdr) unix.Errno, limit int32, falls uint64) {
	addr := netip.MustParseAddr("127.0.0.1")
	snd, rcv := openSockets(t, netnstest.New(t), addr)
	u := snd.transmitter.(*udpTransmitter)
	u.sendmmsg = func(fd int, msgs []mmsghdr) (int, unix.Errno) {
		for i := range msgs {
			if errno := refuse(&msgs[i]); errno != 0 && i == 0 {
				return 0, errno
			} else if errno != 0 {
				return sendmmsg(fd, msgs[:i])
			}
		}
		return sendmmsg(fd, msgs)
	}
	e := entryTo(netip.AddrPortFrom(addr, testPort))
	var c Counters
	var d Datagram
	for burst := range 2 {
		var want [][]byte
		for i := range 100 {
			p := bufOf(packettest.UDP(podA, podB, 1, 2, fmt.Appendf(nil, "burst %d packet %3d", burst, i)))
			want = append(want, bytes.Clone(p.IP()))
			snd.Send(&p, e, false, &c)
		}
		snd.Flush(&c)
		for i := range want {
			if err := rcv.Receive(&d, c.Publish); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.Buf[encap.HeaderLen:], want[i]) {
				t.Fatalf("burst %d: datagram %d is %q", burst, i, d.Buf[encap.HeaderLen:])
			}
		}
	}
	c.Publish()
	var s dataplane.Stats
	c.AddTo(&s.TxPackets, &s.TxBytes, &s)
	if s.TxPackets != 200 || s.Drops != [dataplane.NumDrops]uint64{} || u.sockets.segments.Load() != limit {
		t.Errorf("counted %+v, %d segments from now on", s, u.sockets.segments.Load())
	}
	if s.Offload.Fallbacks != falls {
		t.Errorf("%d fallbacks, want %d", s.Offload.Fallbacks, falls)
	}
}

// TestReplayCounts: of a run that is sent one by one, exactly those packets are dropped of which the kernel refuses a datagram.
func TestReplayCounts(t *testing.T) {
	for errno, why := range map[unix.Errno]dataplane.Drop{unix.EMSGSIZE: dataplane.DropTooBig, unix.ENOBUFS: dataplane.DropWriteError} {
		for name, tt := range map[string]struct {
			refused []int // of the datagrams
			dropped uint64
		}{
			"none": {}, "the first": {[]int{0}, 1}, "one between": {[]int{4}, 1}, "two": {[]int{1, 3}, 2}, "the last of a superpacket": {[]int{14}, 1},
			"two of a superpacket": {[]int{6, 9}, 1}, "one before and one of it": {[]int{4, 5}, 2}, "the one behind": {[]int{15}, 1},
		} {
			t.Run(fmt.Sprint(errno, " ", name), func(t *testing.T) {
				addr := netip.MustParseAddr("127.0.0.1")
				snd, _ := openSockets(t, netnstest.New(t), addr)
				singles := 0
				snd.transmitter.(*udpTransmitter).sendmmsg = func(fd int, msgs []mmsghdr) (int, unix.Errno) {
					if msgs[0].hdr.Controllen > 0 {
						return 0, unix.EINVAL
					}
					singles++
					if slices.Contains(tt.refused, singles-1) {
						return 0, errno
					}
					return sendmmsg(fd, msgs)
				}
				e := entryTo(netip.AddrPortFrom(addr, testPort))
				var c Counters
				const superpacket, size = 5, 100
				var lengths []int
				for i := range 7 { // five packets, a superpacket of ten segments of the same length, and a packet
					payload := size
					if i == superpacket {
						payload = 10 * size
					}
					p := bufOf(packettest.UDP(podA, podB, 1, 2, make([]byte, payload)))
					if i == superpacket {
						p.Offload = encap.Offload{GSO: encap.GSOUDP, Size: size, Partial: true, CsumStart: 20, CsumOffset: 6}
					}
					lengths = append(lengths, len(p.IP()))
					snd.Send(&p, e, false, &c)
				}
				snd.Flush(&c)
				c.Publish()
				var s, want dataplane.Stats
				c.AddTo(&s.TxPackets, &s.TxBytes, &s)
				for i, n := range lengths {
					first, last := i, i
					if i == superpacket {
						last += 9
					} else if i > superpacket {
						first, last = i+9, i+9
					}
					if !slices.ContainsFunc(tt.refused, func(r int) bool { return first <= r && r <= last }) {
						want.TxPackets, want.TxBytes = want.TxPackets+1, want.TxBytes+uint64(n)
					}
				}
				want.Drops[why] = tt.dropped
				if s.TxPackets != want.TxPackets || s.TxBytes != want.TxBytes || s.Drops != want.Drops || singles != 16 {
					t.Errorf("%d packets and %d bytes sent, dropped %v, %d datagrams; want %d, %d, %v, 16", s.TxPackets, s.TxBytes, s.Drops, singles, want.TxPackets, want.TxBytes, want.Drops)
				}
			})
		}
	}
}

// TestProbeSegments has kernels of all ages.
func TestProbeSegments(t *testing.T) {
	segments := func(m *mmsghdr) int { return int(m.hdr.Iov.Len) } // of one byte each
	refuse := func(above int, errno unix.Errno) sendFunc {
		return func(fd int, msgs []mmsghdr) (int, unix.Errno) {
			if segments(&msgs[0]) > above {
				return 0, errno
			}
			return sendmmsg(fd, msgs)
		}
	}
	for _, local := range []string{"127.0.0.1", "::1"} {
		n := netnstest.New(t)
		for name, test := range map[string]struct {
			send sendFunc
			want int32
		}{
			"this one":           {sendmmsg, encap.MaxRunDatagramsNew},
			"more than 64":       {refuse(64, unix.EINVAL), encap.MaxRunDatagrams},
			"unknown":            {refuse(1, unix.EINVAL), 1},
			"not supported":      {refuse(1, unix.EOPNOTSUPP), 1},
			"no checksums there": {refuse(1, unix.EIO), 1},
			"a firewall":         {refuse(1, unix.EPERM), encap.MaxRunDatagrams},
		} {
			n.Must(func() error {
				if got := probeSegments(netip.MustParseAddr(local), test.send); got != test.want {
					t.Errorf("%s, %s: %d segments, want %d", local, name, got, test.want)
				}
				return nil
			})
		}
	}
}

// TestNarrowPathConcernsNobodyElse has one peer whose path takes only short segments, and a kernel
// that answers EINVAL for it, as those before Linux 6.14.
func TestNarrowPathConcernsNobodyElse(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	snd, _ := openSockets(t, netnstest.New(t), addr)
	u := snd.transmitter.(*udpTransmitter)
	messages := 0
	u.sendmmsg = func(fd int, msgs []mmsghdr) (int, unix.Errno) {
		if msgs[0].hdr.Controllen > 0 && *(*uint16)(unsafe.Add(unsafe.Pointer(msgs[0].hdr.Control), unix.CmsgLen(0))) > 1000 {
			return 0, unix.EINVAL
		}
		messages += len(msgs)
		return sendmmsg(fd, msgs)
	}
	e := entryTo(netip.AddrPortFrom(addr, testPort))
	burst := func(size int) int {
		messages = 0
		var c Counters
		for range 40 {
			p := bufOf(packettest.UDP(podA, podB, 1, 2, make([]byte, size)))
			snd.Send(&p, e, false, &c)
		}
		snd.Flush(&c)
		return messages
	}
	if before, narrow, after := burst(500), burst(1400), burst(500); before != 1 || narrow != 40 || after != 1 {
		t.Errorf("40 datagrams are %d messages, on a narrow path %d, and %d after it", before, narrow, after)
	}
}

// TestECNCrossesSockets sends packets with each ECN field, in one batch.
func TestECNCrossesSockets(t *testing.T) {
	for _, s := range []string{"127.0.0.1", "::1"} {
		addr := netip.MustParseAddr(s)
		snd, rcv := openSockets(t, netnstest.New(t), addr)
		e := entryTo(netip.AddrPortFrom(addr, testPort))
		var c Counters
		var packets [8]Packet
		for i := range packets {
			packets[i] = blank(100)
			packets[i].IP()[1] = 0xb8 | byte(i%4) // DSCP stays inside
			snd.Send(&packets[i], e, false, &c)
		}
		snd.Flush(&c)
		var d Datagram
		for range packets {
			if err := rcv.Receive(&d, c.Publish); err != nil {
				t.Fatal(err)
			}
			if want := encap.PacketECN(d.Buf[encap.HeaderLen:]); d.ECN != want {
				t.Errorf("%s: outer ECN %d, inner %d", s, d.ECN, want)
			}
		}
	}
}
