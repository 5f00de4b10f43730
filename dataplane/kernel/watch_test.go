package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// run starts the dataplane's Run; the test fails unless it returns nil.
func (h *host) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.dp.Run(ctx, func() {}) }()
	h.tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.tb.Errorf("Run: %v", err)
		}
	})
}

// await fails the test unless, in time, the objects become those of w and the
// device what it should be.
func (h *host) await(w dataplane.Wanted, within time.Duration) {
	h.tb.Helper()
	deadline := time.Now().Add(netnstest.Patient(within))
	for {
		diff := cmp.Diff(objectsOf(w, true), h.objects()) + h.deviceFaults(w)
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("not repaired in %v: want (-), got (+):\n%s", netnstest.Patient(within), diff)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// deviceFaults says what is wrong with the device.
func (h *host) deviceFaults(w dataplane.Wanted) string {
	var l netlink.Link
	err := h.Do(func() (err error) { l, err = netlink.LinkByName("flannel.1"); return err })
	if err != nil {
		return err.Error()
	}
	v, ok := l.(*netlink.Vxlan)
	if !ok || v.MTU != w.MTU || v.Learning || v.TTL != 0 || v.MasterIndex != 0 || !isUp(v.Attrs()) || !rtnl.HasCarrier(v) || linkMAC(v) != h.dp.VTEPs()[0].MAC {
		return fmt.Sprintf("device is %+v", l)
	}
	out, err := h.Output("ip", "-4", "-o", "addr", "show", "dev", "flannel.1")
	if err != nil || !strings.Contains(out, w.Subnets[0].Addr().String()+"/32 ") {
		return "address is " + out
	}
	return ""
}

func TestRunRepairsWhatOthersChange(t *testing.T) {
	w := wanted(peerB, peerC, peerD)
	for _, args := range [][]string{
		{"ip", "route", "del", "10.5.2.0/24"},
		{"ip", "route", "replace", "10.5.2.0/24", "via", "10.5.2.0", "dev", "flannel.1", "onlink"},
		{"ip", "nexthop", "flush"},
		{"ip", "neigh", "del", "10.5.3.0", "dev", "flannel.1"},
		{"ip", "neigh", "replace", "10.5.3.0", "lladdr", "0e:00:00:00:00:99", "dev", "flannel.1", "nud", "permanent"},
		{"ip", "neigh", "add", "10.5.99.0", "lladdr", "0e:00:00:00:00:99", "dev", "flannel.1", "nud", "permanent"},
		{"bridge", "fdb", "del", "0e:00:00:00:00:0d", "dev", "flannel.1"},
		{"bridge", "fdb", "replace", "0e:00:00:00:00:0d", "dst", "192.0.2.99", "dev", "flannel.1"},
		{"ip", "addr", "del", "10.5.1.0/32", "dev", "flannel.1"},
		{"ip", "link", "set", "flannel.1", "mtu", "1300"},
		{"ip", "link", "set", "flannel.1", "down"},
		{"sh", "-c", "ip link set flannel.1 down && ip link set flannel.1 up"},
		{"ip", "link", "set", "flannel.1", "protodown", "on"},
		{"sh", "-c", "ip link set flannel.1 protodown on && ip link set flannel.1 protodown off"},
		{"sh", "-c", "ip link add br9 type bridge && ip link set flannel.1 master br9"},
		{"ip", "link", "set", "flannel.1", "type", "vxlan", "ttl", "1"},
		{"ip", "link", "set", "flannel.1", "address", "0e:00:00:00:00:98"},
		{"ip", "link", "del", "flannel.1"},
		{"ip", "link", "set", "flannel.1", "type", "vxlan", "learning"},
	} {
		t.Run(fmt.Sprint(args[1:]), func(t *testing.T) {
			t.Parallel()
			h := newHosts(t, 1)[0].open()
			mac := h.dp.VTEPs()[0].MAC
			h.sync(w)
			h.run()
			h.Run(args[0], args[1:]...)
			h.await(w, 2*time.Second)
			if got := h.dp.VTEPs()[0].MAC; got != mac {
				t.Errorf("MAC is %s, was %s", got, mac)
			}
		})
	}
}

func TestRunLeavesForeignReplacementAlone(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerC))
	h.run()
	h.Run("ip", "route", "replace", "10.5.2.0/24", "via", "192.0.2.1", "dev", "eth0")
	h.await(wanted(peerC), 2*time.Second) // nothing half done is left of peerB
	before := h.Run("ip", "route", "show", "10.5.2.0/24")
	if _, err := h.dp.Sync(t.Context(), wanted(peerB, peerC)); !onlyPeers(err) || err == nil {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, h.Run("ip", "route", "show", "10.5.2.0/24")); diff != "" {
		t.Error(diff)
	}
}

func TestRunResyncsWithoutANotification(t *testing.T) {
	h := newHosts(t, 1)[0]
	h.cfg.Resync = 50 * time.Millisecond
	h.open()
	w := wanted(peerB, peerC)
	h.sync(w)
	for _, g := range slices.Concat(watchGroups(false).Must, watchGroups(false).May) {
		rc, err := h.dp.watch.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_DROP_MEMBERSHIP, g) })
		if err != nil {
			t.Fatal(err)
		}
	}
	h.run()
	h.Run("ip", "neigh", "del", "10.5.2.0", "dev", "flannel.1")
	h.await(w, 2*time.Second)
}

func TestRunSurvivesAnOverrun(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	rc, err := h.dp.watch.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096) })
	if err != nil {
		t.Fatal(err)
	}
	w := wanted(manyPeers(500)...)
	h.sync(w) // its notifications overrun the socket, which nobody reads yet
	h.Run("ip", "neigh", "flush", "dev", "flannel.1", "nud", "permanent")
	h.run()
	h.await(w, 5*time.Second)
}

func TestRunDoesNotRepairItsOwnDoing(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.run()
	h.sync(wanted(peerB))
	index := int(h.dp.tunnels[0].watched.Load())
	var s *watch.Subscription
	h.Must(func() (err error) { s, err = watch.Open(watchGroups(false)); return err })
	defer s.Close()
	h.sync(wanted(peerC, peerD))
	h.dp.mu.Lock()
	defer h.dp.mu.Unlock()
	seen, quiet := 0, errors.New("quiet")
	own := func(m unix.NlMsghdr, body []byte) bool {
		seen++
		if e := classify(m, body, index, h.dp.program.batch.Port); e.differs(h.dp.program.have) {
			t.Errorf("own message of type %d is taken for somebody's: %+v", m.Type, e)
		}
		return true
	}
	err := s.Run(t.Context(), watch.Loop{Concerns: own, Spread: pace.Spread{Gather: 200 * time.Millisecond},
		Look: func(context.Context) error { return quiet }})
	if !errors.Is(err, quiet) {
		t.Error(err)
	}
	if seen == 0 {
		t.Error("saw nothing")
	}
}

func TestClassify(t *testing.T) {
	const index, port = 7, 4711
	hdr := func(typ uint16, flags uint16, pid uint32) unix.NlMsghdr {
		return unix.NlMsghdr{Type: typ, Flags: flags, Pid: pid}
	}
	base := netip.MustParseAddr("10.5.2.0")
	key := routeKey{dst: netip.MustParsePrefix("10.5.2.0/24")}
	body := func(b []byte) []byte { return b[unix.SizeofNlMsghdr:] }
	neigh := body(neighMessage(nil, unix.RTM_NEWNEIGH, 0, place{index, base}, peerB.MAC))
	otherNeigh := body(neighMessage(nil, unix.RTM_NEWNEIGH, 0, place{8, base}, peerB.MAC))
	fdb := body(fdbMessage(nil, unix.RTM_NEWNEIGH, 0, fdbEntry{index, peerB.MAC, peerB.Addr}))
	ours := body(routeMessage(nil, unix.RTM_NEWROUTE, 0, key, route{link: 8, protocol: rtnl.RouteProtocol, gateway: base}))
	onDevice := body(routeMessage(nil, unix.RTM_NEWROUTE, 0, key, route{link: index, protocol: 4, gateway: base}))
	direct := body(routeMessage(nil, unix.RTM_NEWROUTE, 0, key, route{link: 8, protocol: rtnl.RouteProtocol, gateway: netip.MustParseAddr("192.0.2.9")}))
	foreign := body(routeMessage(nil, unix.RTM_NEWROUTE, 0, key, route{link: 8, protocol: 4, gateway: base}))
	link := func(index int32, flags uint32) []byte {
		b := make([]byte, unix.SizeofIfInfomsg)
		native.PutUint32(b[4:], uint32(index))
		native.PutUint32(b[8:], flags)
		return b
	}
	addr := make([]byte, unix.SizeofIfAddrmsg)
	native.PutUint32(addr[4:], index)
	for _, tc := range []struct {
		name string
		h    unix.NlMsghdr
		body []byte
		want eventKind
	}{
		{"neighbour", hdr(unix.RTM_DELNEIGH, 0, 1), neigh, neighEvent},
		{"own neighbour", hdr(unix.RTM_DELNEIGH, 0, port), neigh, noEvent},
		{"neighbour elsewhere", hdr(unix.RTM_DELNEIGH, 0, 1), otherNeigh, noEvent},
		{"FDB", hdr(unix.RTM_NEWNEIGH, 0, 0), fdb, fdbEvent},
		{"our route", hdr(unix.RTM_DELROUTE, 0, 1), ours, dumpEvent},
		{"our route by us", hdr(unix.RTM_DELROUTE, 0, port), ours, noEvent},
		{"route on the device", hdr(unix.RTM_NEWROUTE, 0, 1), onDevice, dumpEvent},
		{"direct route", hdr(unix.RTM_NEWROUTE, 0, 1), direct, routeEvent},
		{"foreign route", hdr(unix.RTM_NEWROUTE, 0, 1), foreign, noEvent},
		{"foreign replacement", hdr(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, 1), foreign, routeEvent},
		{"link up", hdr(unix.RTM_NEWLINK, 0, 0), link(index, unix.IFF_UP|unix.IFF_LOWER_UP), lookEvent},
		{"link without carrier", hdr(unix.RTM_NEWLINK, 0, 0), link(index, unix.IFF_UP), dumpEvent},
		{"link down", hdr(unix.RTM_NEWLINK, 0, 0), link(index, 0), dumpEvent},
		{"other link", hdr(unix.RTM_DELLINK, 0, 0), link(9, 0), noEvent},
		{"address", hdr(unix.RTM_DELADDR, 0, 0), addr, lookEvent},
		{"short link", hdr(unix.RTM_NEWLINK, 0, 0), []byte{1}, noEvent},
		{"short neighbour", hdr(unix.RTM_NEWNEIGH, 0, 0), []byte{1}, noEvent},
		{"short route", hdr(unix.RTM_NEWROUTE, 0, 0), []byte{1}, noEvent},
		{"short nexthop", hdr(unix.RTM_DELNEXTHOP, 0, 0), []byte{1}, noEvent},
	} {
		if got := classify(tc.h, tc.body, index, port); got.kind != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got.kind, tc.want)
		}
	}
}

func TestRunEndsAndLeavesTheDataplane(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	h := newHosts(t, 1)[0].open()
	w := wanted(peerB)
	h.sync(w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.dp.Run(ctx, func() {}) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Second):
		t.Fatal("Run does not end")
	}
	h.expect(w)
	if _, err := h.dp.Sync(t.Context(), w); !errors.Is(err, errClosed) {
		t.Errorf("Sync after Run: %v", err)
	}
	h.dp.Stats()
	h.dp.Close()
	goleak.VerifyNone(t, leaks)
}
