package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/pace"
)

func links() Groups {
	return Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK}, May: []int{10000}}
}

// open subscribes in a namespace of its own.
func open(t *testing.T, g Groups) (*netnstest.NS, *Subscription) {
	t.Helper()
	ns := netnstest.New(t)
	var s *Subscription
	ns.Must(func() (err error) { s, err = Open(g); return err })
	t.Cleanup(func() { s.Close() })
	return ns, s
}

// run starts Run and returns how it ended.
func run(ctx context.Context, s *Subscription, l Loop) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	return done
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: waited in vain", what)
	}
}

// looks is a Look that tells of each call, and a Loop with it.
func looks() (<-chan struct{}, Loop) {
	looked := make(chan struct{}, 100)
	return looked, Loop{
		Concerns: func(unix.NlMsghdr, []byte) bool { return true },
		Look:     func(context.Context) error { looked <- struct{}{}; return nil },
		Spread:   pace.Spread{Gather: time.Millisecond},
	}
}

func TestRunLooksAfterNotifications(t *testing.T) {
	ns, s := open(t, links())
	looked, l := looks()
	l.Concerns = func(h unix.NlMsghdr, body []byte) bool {
		return h.Type == unix.RTM_NEWLINK && len(body) >= unix.SizeofIfInfomsg
	}
	ns.Run("ip", "link", "add", "before", "type", "bridge") // kept since Open
	leaks := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, s, l)
	await(t, "change before Run", looked)
	ns.Run("ip", "link", "add", "after", "type", "bridge")
	await(t, "change", looked)
	s.Wake()
	await(t, "Wake", looked)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	goleak.VerifyNone(t, leaks)
}

func TestNetfilterNotifications(t *testing.T) {
	ns, s := open(t, Groups{Protocol: unix.NETLINK_NETFILTER, Must: []int{unix.NFNLGRP_NFTABLES}})
	looked, l := looks()
	l.Concerns = func(h unix.NlMsghdr, _ []byte) bool {
		return h.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, s, l)
	ns.Run("nft", "add", "table", "ip", "x")
	await(t, "table", looked)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestCloseEndsRun(t *testing.T) {
	_, s := open(t, links())
	_, l := looks()
	done := run(t.Context(), s, l)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// Notifications that the kernel drops make everything be read again, and end nothing.
func TestOverrunForgets(t *testing.T) {
	ns, s := open(t, links())
	rc, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1) })
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ns.Run("ip", "link", "set", "lo", "up")
		ns.Run("ip", "link", "set", "lo", "down")
	}
	var forgotten atomic.Int32
	looked, l := looks()
	l.Concerns = func(unix.NlMsghdr, []byte) bool { return false }
	l.Forget = func() { forgotten.Add(1) }
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, s, l)
	await(t, "overrun", looked)
	if forgotten.Load() == 0 {
		t.Error("nothing was forgotten")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// An error that is not an overrun must not leave a Run that is deaf.
func TestRunEndsWithTheReader(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Subscription{file: os.NewFile(uintptr(fd), "unconnected"), wake: make(chan struct{}, 1)}
	defer s.Close()
	_, l := looks()
	if err := s.Run(t.Context(), l); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("got %v", err)
	}
}

func TestOpenWithoutItsGroup(t *testing.T) {
	if _, err := Open(Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{10000}}); err == nil {
		t.Error("no error")
	}
	if _, err := Open(Groups{Protocol: 1000}); err == nil {
		t.Error("no error")
	}
}

// The times of looks after Run began: signs of one change are one look, the resync does
// not wait, and expensive looks are spread.
func TestLoopSpreadsLooks(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name         string
		wakes, looks []time.Duration // since the start
		takes        time.Duration   // one look
		resync       time.Duration
		pending      bool
	}{
		{name: "one cause", wakes: []time.Duration{0, 30 * ms, 60 * ms}, looks: []time.Duration{100 * ms}},
		{name: "two causes", wakes: []time.Duration{0, 500 * ms}, looks: []time.Duration{100 * ms, 600 * ms}},
		{name: "during a look", wakes: []time.Duration{0, 150 * ms}, takes: 100 * ms, looks: []time.Duration{100 * ms, 1200 * ms}},
		{name: "an obstacle", pending: true, looks: []time.Duration{1500 * ms}},
		{name: "an obstacle, and many signs", pending: true, wakes: []time.Duration{0, 500 * ms, 1000 * ms, 1700 * ms},
			looks: []time.Duration{100 * ms, 600 * ms, 1100 * ms, 1500 * ms, 1800 * ms}},
		{name: "expensive, and an obstacle", pending: true, takes: 200 * ms, looks: []time.Duration{1500 * ms}},
		{name: "resync", resync: 300 * ms, looks: []time.Duration{300 * ms, 600 * ms, 900 * ms, 1200 * ms, 1500 * ms, 1800 * ms}},
		{name: "resync while a look is due", wakes: []time.Duration{250 * ms}, resync: 300 * ms,
			looks: []time.Duration{300 * ms, 600 * ms, 900 * ms, 1200 * ms, 1500 * ms, 1800 * ms}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var got []time.Duration
				l := Loop{Resync: tc.resync, Pending: func() bool { return tc.pending }, Spread: pace.Spread{Gather: 100 * ms, Rest: time.Second},
					Look: func(context.Context) error {
						got = append(got, time.Since(start))
						time.Sleep(tc.takes)
						return nil
					}}
				wake := make(chan struct{}, 1)
				for _, d := range tc.wakes {
					time.AfterFunc(d, func() { pace.Wake(wake) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if err := l.run(ctx, wake, nil); err != nil {
					t.Error(err)
				}
				if !slices.Equal(got, tc.looks) {
					t.Errorf("looked at %v, want %v", got, tc.looks)
				}
			})
		})
	}
}

func TestLoopEndsWithTheErrorOfLook(t *testing.T) {
	refused := errors.New("refused")
	wake := make(chan struct{}, 1)
	pace.Wake(wake)
	l := Loop{Look: func(context.Context) error { return refused }}
	if err := l.run(t.Context(), wake, nil); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

func TestMessages(t *testing.T) {
	message := func(size uint32, body ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, size)
		return append(append(b, make([]byte, unix.SizeofNlMsghdr-4)...), body...)
	}
	two := append(message(unix.SizeofNlMsghdr+1, 1, 0, 0, 0), message(unix.SizeofNlMsghdr)...)
	for _, tc := range []struct {
		name string
		b    []byte
		want []int // lengths of the bodies
	}{
		{"nothing", nil, nil},
		{"short", make([]byte, unix.SizeofNlMsghdr-1), nil},
		{"padded", two, []int{1, 0}},
		{"too long", message(unix.SizeofNlMsghdr + 1), nil},
		{"no length", message(0), nil},
		{"last without padding", message(unix.SizeofNlMsghdr+1, 1), []int{1}},
	} {
		var got []int
		Messages(tc.b, func(_ unix.NlMsghdr, body []byte) { got = append(got, len(body)) })
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}
