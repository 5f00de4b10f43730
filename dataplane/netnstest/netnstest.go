// Package netnstest makes hosts for tests out of network namespaces.
//
// A namespace has no name and lives as long as its test: nothing is left in
// /run/netns however the test ends. All links have the kernel's default offloads.
package netnstest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is one host: a network namespace with its loopback up.
type NS struct {
	tb     testing.TB
	mu     sync.RWMutex // a connection that is still dialed when the test ends must not enter what has the file's number then
	handle netns.NsHandle
}

// RequireRoot skips the test unless it runs as root; with OVERLAYD_REQUIRE_ROOT=1 it fails
// instead.
func RequireRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("OVERLAYD_REQUIRE_ROOT") == "1" {
		tb.Fatal("this test needs root, and OVERLAYD_REQUIRE_ROOT=1 forbids to skip it")
	}
	tb.Skip("needs root")
}

// Lacks skips the test because this machine lacks something; with OVERLAYD_REQUIRE_ROOT=1 it fails instead.
func Lacks(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("OVERLAYD_REQUIRE_ROOT") == "1" {
		tb.Fatalf("this machine has no %s, and OVERLAYD_REQUIRE_ROOT=1 forbids to skip the test", what)
	}
	tb.Skip("no " + what)
}

// CPUTime returns the processor time that f takes, that of the kernel for it included. It is
// the same on a busy machine. The test must not run in parallel with others of its package.
func CPUTime(tb testing.TB, f func()) time.Duration {
	tb.Helper()
	before := processTime(tb)
	f()
	return processTime(tb) - before
}

func processTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// New makes a host that ends with the test.
func New(tb testing.TB) *NS {
	tb.Helper()
	RequireRoot(tb)
	n := &NS{tb: tb, handle: netns.None()}
	// The thread that unshares is thrown away: its goroutine never unlocks it.
	err := onOwnThread(func() (err error) {
		n.handle, err = netns.New()
		return err
	})
	if err != nil {
		tb.Fatalf("make network namespace: %v", err)
	}
	tb.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.handle.Close()
	})
	n.Must(func() error { return up("lo") })
	return n
}

func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := fmt.Errorf("the function ended its goroutine (t.Fatal inside Do?)")
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}

// Do runs f in the namespace, on a thread of its own: sockets and child
// processes that f makes stay in the namespace, goroutines that it starts do
// not. f must not call t.Fatal. /proc/net and /sys/class/net inside f still
// show another namespace; use netlink, or /proc/thread-self/net.
func (n *NS) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := n.enter(); err != nil {
			return fmt.Errorf("enter namespace: %w", err)
		}
		return f()
	})
}

func (n *NS) enter() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return netns.Set(n.handle)
}

// Must is Do for what may not fail.
func (n *NS) Must(f func() error) {
	n.tb.Helper()
	if err := n.Do(f); err != nil {
		n.tb.Fatal(err)
	}
}

// Start starts cmd in the namespace. The caller waits for it.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Run runs a command in the namespace and returns its combined output without
// the final newline; the test fails if the command does.
func (n *NS) Run(name string, args ...string) string {
	n.tb.Helper()
	out, err := n.Output(name, args...)
	if err != nil {
		n.tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// Output is Run for what may fail.
func (n *NS) Output(name string, args ...string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	return strings.TrimRight(string(out), "\n"), err
}

// Handle returns the namespace's handle, owned by n, for netlink.NewHandleAt.
func (n *NS) Handle() netns.NsHandle { return n.handle }

// Addr adds an address with its prefix length, such as "192.0.2.1/24", to a link. One
// of IPv6 can be used at once: there is no duplicate address detection.
func (n *NS) Addr(link, addr string) {
	n.tb.Helper()
	n.Must(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("find link %s: %w", link, err)
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags |= unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(l, a); err != nil {
			return fmt.Errorf("add address %s to %s: %w", addr, link, err)
		}
		if a.Flags&unix.IFA_F_NODAD == 0 || l.Attrs().RawFlags&unix.IFF_RUNNING == 0 {
			return nil
		}
		return awaitLocal(a.IP)
	})
}

// awaitLocal waits until the kernel delivers packets to an address: it makes the route for one of IPv6 a moment after the address, and needs a
// lock for that which all namespaces of the machine share.
func awaitLocal(ip net.IP) error {
	for deadline := time.Now().Add(Within(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(ip)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no local route to %s: got %v, err %v", ip, routes, err)
		}
	}
}

// Busy reports whether more processes want to run than the machine has time for: a promise about a time is not made for that.
func Busy() bool {
	b, err := os.ReadFile("/proc/loadavg") // such as "3.27 2.10 1.99 2/90 4711": over a minute, …, at this moment
	var minute, five, fifteen float64
	var running int
	if err == nil {
		_, err = fmt.Sscanf(string(b), "%f %f %f %d/", &minute, &five, &fifteen, &running)
	}
	busy := 3 * runtime.NumCPU()
	return err == nil && (minute > float64(busy) || running > busy)
}

// Patient returns how long a test waits for what should come within a time: ten seconds at least if the machine is busy, as beside other
// packages' tests.
func Patient(within time.Duration) time.Duration {
	if Busy() {
		within = max(within, 10*time.Second)
	}
	return Within(within)
}

// HoldBurst lets a socket hold what comes while its reader has no processor for some seconds; by default that is 256 small datagrams.
func HoldBurst(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
	return errors.Join(err, serr)
}

// AwaitAddrs waits until the kernel knows that no other host has the IPv6 addresses: only then they have routes.
func (n *NS) AwaitAddrs() {
	n.tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); n.Run("ip", "-6", "addr", "show", "tentative") != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.tb.Fatal("an IPv6 address stays tentative")
		}
	}
}

// DefaultRoute routes everything else through a gateway.
func (n *NS) DefaultRoute(gateway string) {
	n.tb.Helper()
	n.Must(func() error {
		return netlink.RouteReplace(&netlink.Route{Gw: netip.MustParseAddr(gateway).AsSlice()})
	})
}

// Link joins two hosts by a veth pair, up on both sides, without addresses but the links' own. There is no duplicate address detection on it.
func Link(a *NS, nameA string, b *NS, nameB string) {
	a.tb.Helper()
	a.Must(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nameA
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.handle)})
		if err != nil {
			return fmt.Errorf("add veth %s-%s: %w", nameA, nameB, err)
		}
		return up(nameA)
	})
	b.Must(func() error { return up(nameB) })
}

// LAN joins hosts by a bridge in a namespace of its own, which it returns. Host
// i gets a link eth0 with the i-th address after the bridge's, which is the
// prefix's first, and a default route through the bridge.
func LAN(tb testing.TB, prefix string, hosts ...*NS) *NS {
	tb.Helper()
	under := New(tb)
	under.Must(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		return up("br0")
	})
	for i, h := range hosts {
		Link(under, fmt.Sprintf("port%d", i), h, "eth0")
		under.Must(func() error { return enslave(fmt.Sprintf("port%d", i)) })
	}
	Number(under, prefix, hosts...)
	return under
}

// Number gives the bridge of a LAN and its hosts addresses of one more prefix, as LAN
// does: with one prefix of each family it makes the hosts dual-stack.
func Number(under *NS, prefix string, hosts ...*NS) {
	under.tb.Helper()
	p := netip.MustParsePrefix(prefix)
	addr := p.Masked().Addr().Next()
	gateway := addr.String()
	under.Addr("br0", netip.PrefixFrom(addr, p.Bits()).String())
	for _, h := range hosts {
		addr = addr.Next()
		h.Addr("eth0", netip.PrefixFrom(addr, p.Bits()).String())
		h.DefaultRoute(gateway)
	}
}

// Plug gives a host a link eth0 with an address to the bridge of a LAN, in which it
// is the named port.
func Plug(under *NS, port string, h *NS, addr string) {
	under.tb.Helper()
	Link(under, port, h, "eth0")
	under.Must(func() error { return enslave(port) })
	h.Addr("eth0", addr)
}

// enslave makes a link a port of the bridge.
func enslave(port string) error {
	l, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	br, err := netlink.LinkByName("br0")
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(l, br)
}

// up sets a link up. Its own IPv6 address works at once: no other host is asked whether it has the same, which takes two seconds.
func up(name string) error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
