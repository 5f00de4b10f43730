package guard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// sniff notes which ids arrive at eth0 of a pod.
func sniff(t testing.TB, ns *netnstest.NS, seen *sync.Map) {
	var fd int
	ns.Must(func() error {
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0x0300); err != nil {
			return err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		tv := unix.Timeval{Usec: 200000}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: l.Index})
	})
	done := make(chan bool)
	stopped := make(chan bool)
	t.Cleanup(func() { close(done); <-stopped; unix.Close(fd) })
	go func() {
		defer close(stopped)
		buf := make([]byte, 70000)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			if f, ok := from.(*unix.SockaddrLinklayer); ok && f.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			s := string(buf[:n])
			for {
				i := strings.Index(s, "ID<")
				if i < 0 {
					break
				}
				s = s[i+3:]
				if j := strings.IndexByte(s, '>'); j >= 0 && j < 12 {
					seen.Store(s[:j], true)
				}
			}
		}
	}()
}

// TestAttack3HonestTraffic sends random packets that are good by the ways that there are, with A3N=60 or more of each, and shows what the guard drops. It is no
// test that passes: without masquerading the answers to some of them are plain.
func TestAttack3HonestTraffic(t *testing.T) {
	if os.Getenv("A3N") == "" {
		t.Skip("A3N is not set")
	}
	for _, conntrack := range []bool{false, true} {
		for name, join := range joins() {
			t.Run(fmt.Sprintf("%s, tracked %v", name, conntrack), func(t *testing.T) {
				overBoth(t, func(t *testing.T, w *world) { honest(t, w, join, conntrack) })
			})
		}
	}
}

func honest(t *testing.T, w *world, join func(*world), conntrack bool) {
	join(w)
	a, b := w.hosts[0], w.hosts[1]
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
	if conntrack {
		for _, h := range []*host{a, b} {
			h.Run("nft", "add table inet m; add chain inet m p { type nat hook postrouting priority 100; }; add rule inet m p ip saddr 10.42.0.0/16 ip daddr != 10.42.0.0/16 oifname eth0 masquerade; add rule inet m p ip6 saddr fd42::/48 ip6 daddr != fd42::/48 oifname eth0 masquerade")
		}
	} else {
		w.stranger.Run("ip", "route", "add", a.subnets()[0].String(), "via", map[bool]string{false: a.addr.String(), true: "192.0.2.2"}[w.v6])
	}
	seen := &sync.Map{}
	sniff(t, a.pod, seen)
	sniff(t, b.pod, seen)
	sniff(t, beside, seen)
	sniff(t, w.stranger, seen)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("A3SEED"); s != "" {
		fmt.Sscan(s, &seed)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	type path struct {
		name     string
		from     *netnstest.NS
		src, dst func(v6 bool) netip.Addr
		sniffed  bool
		only     int // family; 0 both
		host     bool
	}
	fix := func(x netip.Addr) func(bool) netip.Addr { return func(bool) netip.Addr { return x } }
	under := 4 + 2*family6(w.v6)
	paths := []path{
		{"pod to pod", a.pod, a.podAddr, b.podAddr, true, 0, false},
		{"pod to pod, back", b.pod, b.podAddr, a.podAddr, true, 0, false},
		{"host to pod", a.NS, a.overlay, b.podAddr, true, 0, false},
		{"host to pod, back", b.NS, b.overlay, a.podAddr, true, 0, false},
		{"pod to host", b.pod, b.podAddr, a.overlay, false, 0, true},
		{"pod to host, there", a.pod, a.podAddr, b.overlay, false, 0, true},
		{"pod to own gateway", a.pod, a.podAddr, func(v bool) netip.Addr { return a.overlay(v).Next() }, false, 0, true},
		{"host's address to pod", a.NS, fix(a.addr), b.podAddr, true, under, false},
		{"pods of one host", a.pod, a.podAddr, func(v bool) netip.Addr { return a.podAddr(v).Next() }, true, 0, false},
		{"pod to outside", a.pod, a.podAddr, fix(w.strange), true, under, false},
		{"pod to peer's underlay", a.pod, a.podAddr, fix(b.addr), false, under, true},
		{"host to host", a.NS, fix(a.addr), fix(b.addr), false, under, true},
		{"stranger to host", w.stranger, fix(w.strange), fix(a.addr), false, under, true},
		{"host to outside", a.NS, fix(a.addr), fix(w.strange), true, under, false},
	}
	if !conntrack { // without masquerading the peer takes that for plain_source
		paths = slices.DeleteFunc(paths, func(p path) bool { return p.name == "pod to peer's underlay" })
	}
	warm := func() {
		for _, v6 := range []bool{false, true} {
			w.exchange(a.pod, a.podAddr(v6), b.podAddr(v6), 100)
			w.exchange(a.pod, a.podAddr(v6), a.podAddr(v6).Next(), 100)
		}
		for _, p := range paths {
			for _, v6 := range []bool{false, true} {
				if p.only == 0 || p.only == 4+2*family6(v6) {
					sendRaw(p.from, packet(p.src(v6), p.dst(v6), 7, 7, []byte("warm")))
				}
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	warm()
	ports := []uint16{testPort, testPort, 4789, 53, 1, 65535, 9000}
	id := 0
	n := 400
	if s := os.Getenv("A3N"); s != "" {
		fmt.Sscan(s, &n)
	}
	for i := range n {
		for _, p := range paths {
			v6 := r.IntN(2) == 1
			if p.only != 0 {
				v6 = p.only == 6
			}
			src, dst := p.src(v6), p.dst(v6)
			proto := []byte{1, 6, 17, 17, 17, 47, 132, 50, 4, 41, 253, 2, 58, 136}[r.IntN(14)]
			if v6 && proto == 1 {
				proto = 58
			}
			sport, dport := uint16(r.Uint32()), uint16(r.Uint32())
			if r.IntN(3) == 0 {
				sport = ports[r.IntN(len(ports))]
			}
			if r.IntN(3) == 0 {
				dport = ports[r.IntN(len(ports))]
			}
			// documented
			if proto == 17 && (dport == testPort && (p.host || p.name == "stranger to host") || sport == testPort && (p.name == "pod to peer's underlay" || p.name == "host to host")) {
				continue
			}
			payload := make([]byte, r.IntN(1200))
			for k := range payload {
				payload[k] = byte(r.Uint32())
			}
			if len(payload) > 8 && r.IntN(4) == 0 {
				copy(payload[8:], []byte{8, 0, 0, 0, 0, 0, byte(2 + r.IntN(3)), 0}) // VXLAN of another network
			}
			if len(payload) >= 8 {
				binary.BigEndian.PutUint16(payload, sport)
				binary.BigEndian.PutUint16(payload[2:], dport)
			}
			id++
			mark := fmt.Sprintf("ID<%d>", id)
			frags := 1
			if r.IntN(3) == 0 && len(payload) > 400 {
				frags = 2
			}
			payload = append(payload, mark...)
			if proto == 17 && len(payload) >= 8+len(mark) {
				binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
				copy(payload[6:8], []byte{0, 0})
				summed(src, dst, payload)
			} else if proto == 1 || proto == 58 { // an echo, or a few others
				if len(payload) < 8 {
					continue
				}
				types := []byte{8, 0, 13, 17, 3, 11, 12}
				if v6 {
					types = []byte{128, 129, 1, 3, 2, 200}
				}
				payload[0], payload[1] = types[r.IntN(len(types))], 0
				payload[2], payload[3] = 0, 0
				if v6 {
					pseudo := append(src.AsSlice(), dst.AsSlice()...)
					pseudo = append(pseudo, 0, 0, byte(len(payload)>>8), byte(len(payload)), 0, 0, 0, 58)
					binary.BigEndian.PutUint16(payload[2:], ^onesSum(payload, onesSum(pseudo, 0)))
				} else {
					binary.BigEndian.PutUint16(payload[2:], ^onesSum(payload, 0))
				}
				if !v6 && proto == 58 || v6 && proto == 1 {
					continue
				}
			}
			pk := ipPacket(src, dst, proto, payload)
			kind := "plain"
			if !v6 && r.IntN(4) == 0 {
				kind = "options"
				opts := [][]byte{{1, 1, 1, 0}, {148, 4, 0, 0}, {7, 7, 4, 0, 0, 0, 0, 0}, {68, 8, 5, 0, 0, 0, 0, 0}}[r.IntN(4)]
				pk = append(append(append([]byte{}, pk[:20]...), opts...), pk[20:]...)
				pk[0] = 0x40 | byte(5+len(opts)/4)
				binary.BigEndian.PutUint16(pk[2:], uint16(len(pk)))
				binary.BigEndian.PutUint16(pk[10:], 0)
				binary.BigEndian.PutUint16(pk[10:], ^onesSum(pk[:20+len(opts)], 0))
				frags = 1
			}
			if v6 && r.IntN(4) == 0 {
				kind = "extension headers"
				ext := byte(60)
				if r.IntN(2) == 0 {
					ext = 0 // hop by hop
				}
				hdr := []byte{pk[6], byte(0), 1, 4, 0, 0, 0, 0}
				if r.IntN(2) == 0 {
					hdr = []byte{pk[6], 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
				}
				q := append(append(append([]byte{}, pk[:40]...), hdr...), pk[40:]...)
				q[6] = ext
				binary.BigEndian.PutUint16(q[4:], uint16(len(q)-40))
				pk = q
				frags = 1
			}
			if !v6 {
				binary.BigEndian.PutUint16(pk[4:], uint16(id))
				if frags == 1 {
					hl := int(pk[0]&15) * 4
					binary.BigEndian.PutUint16(pk[10:], 0)
					binary.BigEndian.PutUint16(pk[10:], ^onesSum(pk[:hl], 0))
				}
			}
			if v6 {
				pk[1], pk[2] = byte(r.Uint32())&0x0f, byte(r.Uint32())
				if r.IntN(3) == 0 {
					pk[0], pk[1] = 0x60|byte(r.IntN(16)), byte(r.Uint32())
				}
			} else if r.IntN(3) == 0 && frags == 1 {
				pk[1] = byte(r.Uint32())
				hl := int(pk[0]&15) * 4
				binary.BigEndian.PutUint16(pk[10:], 0)
				binary.BigEndian.PutUint16(pk[10:], ^onesSum(pk[:hl], 0))
			}
			all := [][]byte{pk}
			if frags == 2 {
				kind = "fragments"
				all = fragments(pk, 8*(1+r.IntN((len(payload)-1)/8-1)))
				if v6 {
					for _, f := range all {
						binary.BigEndian.PutUint32(f[44:], uint32(id))
					}
				}
				if r.IntN(2) == 0 {
					all[0], all[1] = all[1], all[0]
				}
			}
			drops := func() (l [3]Drops) {
				for i, h := range w.hosts {
					h.Must(func() error { l[i] = h.guard.Drops(); return nil })
				}
				return l
			}
			before := drops()
			for _, f := range all {
				if err := trySendRaw(p.from, f); err != nil {
					t.Errorf("REFUSED: %s, v6 %v, proto %d, %s, %d bytes, ports %d %d, first %x: %v, drops %s", p.name, v6, proto, kind, len(payload), sport, dport, f[:min(64, len(f))], err, diffDrops(before, drops()))
				}
			}
			key := fmt.Sprint(id)
			if p.sniffed {
				deadline := time.Now().Add(150 * time.Millisecond)
				ok := false
				for !ok && time.Now().Before(deadline) {
					_, ok = seen.Load(key)
					if !ok {
						time.Sleep(200 * time.Microsecond)
					}
				}
				if !ok {
					t.Logf("lost: %s, v6 %v, proto %d, %s, %d bytes, ports %d %d, first %x, drops %s", p.name, v6, proto, kind, len(payload), sport, dport, all[0][:min(48, len(all[0]))], diffDrops(before, drops()))
				}
			} else if i%10 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
			if d := diffDrops(before, drops()); d != "" {
				t.Errorf("DROPPED: %s, v6 %v, proto %d, %s, %d bytes, ports %d %d, drops %s, first %x", p.name, v6, proto, kind, len(payload), sport, dport, d, all[0][:min(64, len(all[0]))])
			}
		}
	}
}

func diffDrops(a, b [3]Drops) (s string) {
	for i := range a {
		for j := range a[i] {
			if b[i][j] != a[i][j] {
				s += fmt.Sprintf("host %d %s +%d ", i, dataplane.Drop(j), b[i][j]-a[i][j])
			}
		}
	}
	return s
}

func trySendRaw(ns *netnstest.NS, b []byte) error {
	return ns.Do(func() error {
		family, dst := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(b[16:20])})
		if b[0]>>4 == 6 {
			family, dst = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(b[24:40])}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, b, 0, dst)
	})
}
