package rtmsg

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

// open connects to a namespace of its own.
func open(t *testing.T) (*netnstest.NS, *Conn) {
	t.Helper()
	ns := netnstest.New(t)
	var c *Conn
	ns.Must(func() (err error) { c, err = Open(); return err })
	t.Cleanup(c.Close)
	return ns, c
}

// nexthop appends a request for a nexthop object, whose id is the kernel's choice.
func nexthop(b []byte, link uint32, gateway netip.Addr) []byte {
	start := len(b)
	h := make([]byte, unix.SizeofNhmsg)
	h[0] = Family(gateway)
	native.PutUint32(h[4:], unix.RTNH_F_ONLINK)
	b = Begin(b, unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO, h)
	return Finish(AttrAddr(AttrUint32(b, unix.NHA_OIF, link), unix.NHA_GATEWAY, gateway), start)
}

// idOf returns the id in a nexthop message.
func idOf(body []byte) uint32 {
	_, rest := Split(body, unix.SizeofNhmsg)
	for typ, v := range Attrs(rest) {
		if typ == unix.NHA_ID {
			return Uint32(v)
		}
	}
	return 0
}

func TestTransactTellsEachResult(t *testing.T) {
	ns, c := open(t)
	ns.Run("ip", "link", "add", "x", "index", "77", "type", "bridge")
	ns.Run("ip", "link", "set", "x", "up")
	const index = 77
	const n = 3*batchMessages + 7
	bad := func(i int) bool { return i%50 == 3 || i == n-1 } // an invalid gateway: the address is local
	skip := func(i int) bool { return i%7 == 5 }
	ns.Run("ip", "addr", "add", "10.7.0.1/32", "dev", "lo")
	results := map[int]error{}
	ids := map[uint32]bool{}
	encode := func(i int, b []byte) []byte {
		switch {
		case skip(i):
			return b
		case bad(i):
			return nexthop(b, index, netip.MustParseAddr("10.7.0.1"))
		}
		return nexthop(b, index, netip.AddrFrom4([4]byte{10, 6, byte(i >> 8), byte(i)}))
	}
	err := c.Transact(t.Context(), n, encode, func(i int, reply []byte, err error) {
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
	filter := AttrUint32(nil, unix.NHA_OIF, uint32(index))
	if err := c.Dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), filter, func(b []byte) {
		if ids[idOf(b)] {
			found++
		}
	}); err != nil || found != good {
		t.Errorf("found %d of %d, %v", found, good, err)
	}
}

func TestDumpTellsARefusal(t *testing.T) {
	_, c := open(t)
	for range 2 { // a refusal leaves the connection usable
		if err := c.Dump(unix.RTM_GETNEXTHOP, make([]byte, 2), nil, func([]byte) {}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("got %v", err)
		}
		if err := c.Dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func([]byte) {}); err != nil {
			t.Error(err)
		}
	}
}

func TestInterruptedDump(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{file: os.NewFile(uintptr(fds[0]), "ours")}
	defer c.Close()
	defer unix.Close(fds[1])
	for _, flags := range []uint16{0, unix.NLM_F_DUMP_INTR} {
		// The kernel's answer: one object, and the end.
		seq := c.seq + 1
		answer := Finish(Begin(nil, unix.RTM_NEWNEXTHOP, flags, make([]byte, unix.SizeofNhmsg)), 0)
		end := len(answer)
		answer = Finish(Begin(answer, unix.NLMSG_DONE, flags, make([]byte, 4)), end)
		native.PutUint32(answer[8:], seq)
		native.PutUint32(answer[end+8:], seq)
		if _, err := unix.Write(fds[1], answer); err != nil {
			t.Fatal(err)
		}
		objects := 0
		err := c.Dump(unix.RTM_GETNEXTHOP, nil, nil, func([]byte) { objects++ })
		if objects != 1 || errors.Is(err, netlink.ErrDumpInterrupted) != (flags != 0) || flags == 0 && err != nil {
			t.Errorf("flags %#x: %d objects, %v", flags, objects, err)
		}
	}
}

// What the kernel answers is well formed; a reader that trusts it would still be one kernel bug away from a panic.
func FuzzAnswer(f *testing.F) {
	f.Add(nexthop(nil, 4, netip.MustParseAddr("192.0.2.2")))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		watch.Messages(b, func(h unix.NlMsghdr, body []byte) {
			_ = fmt.Sprint(ackError(h, body))
			_ = idOf(body)
		})
	})
}
