package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/watch"
)

func TestTransactTellsEachResult(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	c, index := h.dp.tunnels[0].batch, h.link().Index
	const n = 3*batchMessages + 7
	bad := func(i int) bool { return i%50 == 3 || i == n-1 } // an invalid gateway: the address is local
	skip := func(i int) bool { return i%7 == 5 }
	h.Run("ip", "addr", "add", "10.7.0.1/32", "dev", "lo")
	results := map[int]error{}
	ids := map[uint32]bool{}
	encode := func(i int, b []byte) []byte {
		switch {
		case skip(i):
			return b
		case bad(i):
			return newNexthopMessage(b, place{index, netip.MustParseAddr("10.7.0.1")})
		}
		return newNexthopMessage(b, place{index, netip.AddrFrom4([4]byte{10, 6, byte(i >> 8), byte(i)})})
	}
	err := h.dp.tunnels[0].batch.transact(t.Context(), n, encode, func(i int, reply []byte, err error) {
		if _, twice := results[i]; twice {
			t.Errorf("message %d has two results", i)
		}
		results[i] = err
		if err == nil {
			ids[idOf(reply)] = true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for i := range n {
		err, told := results[i]
		switch {
		case skip(i) == told:
			t.Errorf("message %d: skipped %v, result told %v", i, skip(i), told)
		case skip(i):
		case bad(i):
			if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "gateway") {
				t.Errorf("message %d: %v", i, err)
			}
		case err != nil:
			t.Errorf("message %d: %v", i, err)
		default:
			good++
		}
	}
	if len(ids) != good || ids[0] {
		t.Errorf("%d ids for %d nexthops", len(ids), good)
	}
	found := 0
	filter := attrUint32(nil, unix.NHA_OIF, uint32(index))
	if err := c.dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), filter, func(b []byte) {
		if ids[idOf(b)] {
			found++
		}
	}); err != nil || found != good {
		t.Errorf("found %d of %d, %v", found, good, err)
	}
}

func TestDumpTellsARefusal(t *testing.T) {
	ns := netnstest.New(t)
	var c *conn
	ns.Must(func() (err error) { c, err = openConn(); return err })
	defer c.close()
	for range 2 { // a refusal leaves the connection usable
		if err := c.dump(unix.RTM_GETNEXTHOP, make([]byte, 2), nil, func([]byte) {}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("got %v", err)
		}
		if err := c.dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func([]byte) {}); err != nil {
			t.Error(err)
		}
	}
}

func TestRouteMessageIsReadBack(t *testing.T) {
	a4, a6 := netip.MustParseAddr("10.5.2.0"), netip.MustParseAddr("fd00:0:0:2::")
	for _, want := range []struct {
		k routeKey
		r route
	}{
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{protocol: 211, nexthop: 7}},
		{routeKey{netip.PrefixFrom(a4, 24), 9}, route{link: 4, protocol: 3, gateway: a4, onlink: true}},
		{routeKey{netip.PrefixFrom(a6, 64), 0}, route{link: 4, protocol: 211, gateway: a6, onlink: true}},
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{link: 4, protocol: 211, gateway: peerB.Addr, direct: true}},
		{routeKey{netip.PrefixFrom(a4, 24), 0}, route{link: 4, protocol: 3, gateway: peerB.Addr}},
	} {
		b := routeMessage(nil, unix.RTM_NEWROUTE, 0, want.k, want.r)
		k, r, ok := parseRoute(b[unix.SizeofNlMsghdr:])
		if !ok || k != want.k || r != want.r || int(native.Uint32(b)) != len(b) {
			t.Errorf("got %v %v, want %v %v", k, r, want.k, want.r)
		}
	}
}

// What the kernel sends is well formed; a reader that trusts it would still
// be one kernel bug away from a panic.
func FuzzParse(f *testing.F) {
	f.Add(routeMessage(nil, unix.RTM_NEWROUTE, 0, routeKey{dst: netip.MustParsePrefix("10.5.2.0/24")}, route{nexthop: 7}))
	f.Add(fdbMessage(nil, unix.RTM_NEWNEIGH, 0, fdbEntry{4, peerB.MAC, peerB.Addr}))
	f.Add(newNexthopMessage(nil, place{4, peerB.Addr}))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newState()
		s.links = []int{4}
		watch.Messages(b, func(h unix.NlMsghdr, body []byte) {
			for _, typ := range []uint16{h.Type, unix.RTM_NEWROUTE, unix.RTM_DELNEIGH, unix.RTM_NEWLINK, unix.RTM_DELNEXTHOP, unix.RTM_NEWADDR} {
				h.Type = typ
				classify(h, body, 4, 1).differs(s)
			}
			s.addRoute(body)
			if n, ok := parseNexthop(body); ok {
				s.addNexthop(n)
			}
			if n, ok := parseNeighbour(body); ok {
				s.addFDB(n, false)
			}
			_ = fmt.Sprint(ackError(h, body))
		})
	})
}

func TestInterruptedDump(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{file: os.NewFile(uintptr(fds[0]), "ours"), in: make([]byte, 4096)}
	defer c.close()
	defer unix.Close(fds[1])
	for _, flags := range []uint16{0, unix.NLM_F_DUMP_INTR} {
		// The kernel's answer: one object, and the end.
		seq := c.seq + 1
		answer := finish(begin(nil, unix.RTM_NEWNEXTHOP, flags, make([]byte, unix.SizeofNhmsg)), 0)
		end := len(answer)
		answer = finish(begin(answer, unix.NLMSG_DONE, flags, make([]byte, 4)), end)
		native.PutUint32(answer[8:], seq)
		native.PutUint32(answer[end+8:], seq)
		if _, err := unix.Write(fds[1], answer); err != nil {
			t.Fatal(err)
		}
		objects := 0
		err := c.dump(unix.RTM_GETNEXTHOP, nil, nil, func([]byte) { objects++ })
		if objects != 1 || errors.Is(err, netlink.ErrDumpInterrupted) != (flags != 0) || flags == 0 && err != nil {
			t.Errorf("flags %#x: %d objects, %v", flags, objects, err)
		}
	}
}

// idOf returns the id in a nexthop message.
func idOf(body []byte) uint32 {
	n, _ := parseNexthop(body)
	return n.id
}
