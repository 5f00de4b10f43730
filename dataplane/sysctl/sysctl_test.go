package sysctl

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// start keeps the settings of a host with flannel.7 and another interface, until the test ends.
func start(t *testing.T, c Config) (*netnstest.NS, *Settings, *netnstest.Log) {
	t.Helper()
	ns := netnstest.New(t)
	for _, name := range []string{"flannel.7", "eth7"} {
		ns.Run("ip", "link", "add", name, "type", "bridge")
	}
	var log netnstest.Log
	c.Log, c.VNI = slog.New(slog.NewTextHandler(&log, nil)), 7
	var s *Settings
	ns.Must(func() (err error) {
		if s, err = Open(c); err == nil {
			_, err = s.Sync(t.Context(), dataplane.Wanted{})
		}
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ns.Do(func() error { return s.Run(ctx, func() {}) }) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return ns, s, &log
}

func (s setting) in(ns *netnstest.NS) (value string) {
	ns.Must(func() error {
		b, err := os.ReadFile("/proc/sys/" + s.path)
		value = strings.TrimSpace(string(b))
		return err
	})
	return value
}

// patience is for a machine on which everybody waits for the lock of rtnetlink, as these settings do.
const patience = 30 * time.Second

// What somebody turns off is on again soon, with a line, and without the kernel's notices too.
func TestSettingsStay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"notices", "no notices"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, s, log := start(t, Config{IPv4: true, IPv6: true, Deaf: name == "no notices"})
			all := []setting{{ipForward, "1"}, {ip6Forward, "1"}}
			for _, path := range []string{"ipv4/conf/flannel.7/forwarding=1", "ipv4/conf/flannel.7/rp_filter=2", "ipv4/conf/flannel.7/accept_redirects=0",
				"ipv4/conf/flannel.7/secure_redirects=0", "ipv4/conf/flannel.7/send_redirects=0", "ipv4/conf/flannel.7/arp_ignore=8",
				"ipv4/conf/flannel.7/accept_source_route=0", "ipv6/conf/flannel.7/seg6_enabled=0", "ipv6/conf/flannel.7/rpl_seg_enabled=0",
				"ipv6/conf/flannel.7/forwarding=1", "ipv6/conf/flannel.7/accept_redirects=0", "ipv6/conf/flannel.7/accept_ra=0"} {
				path, value, _ := strings.Cut(path, "=")
				all = append(all, setting{"net/" + path, value})
			}
			for _, w := range all {
				if got := w.in(ns); got != w.value {
					t.Errorf("%s is %s", w.path, got)
				}
				before := log.Count("repaired what others had changed")
				other := map[string]string{"1": "0", "0": "1", "2": "1", "8": "0"}[w.value]
				ns.Run("sh", "-c", "echo "+other+" > /proc/sys/"+w.path)
				for deadline := time.Now().Add(patience); w.in(ns) != w.value; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s stays %s", w.path, w.in(ns))
					}
				}
				for deadline := time.Now().Add(patience); log.Count("repaired what others had changed") == before; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: repaired in silence", w.path)
					}
				}
			}
			if o := s.Status().Objects; len(o) != 1 || o[0].Wanted != len(all) || o[0].Have != len(all) || o[0].Repairs < uint64(len(all)) {
				t.Errorf("status %+v", s.Status())
			}
		})
	}
}

// A device in the place of another, as when the dataplane changes, gets its settings, and nobody is said to have changed them.
func TestDeviceReplaced(t *testing.T) {
	t.Parallel()
	ns, s, log := start(t, Config{IPv4: true})
	for range 5 {
		ns.Run("sh", "-c", "printf 'link del flannel.7\nlink add flannel.7 type bridge\n' | ip -batch -")
		for deadline := time.Now().Add(patience); (setting{ip4Conf + "/flannel.7/send_redirects", "0"}).in(ns) != "0"; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not set")
			}
		}
	}
	if n := log.Count("repaired"); n > 0 || s.Status().Objects[0].Repairs > 0 {
		t.Errorf("%d repairs:\n%s", n, log.String())
	}
}

// Interfaces of others are reported, once, and not written.
func TestOthersInterfacesStay(t *testing.T) {
	t.Parallel()
	ns, _, log := start(t, Config{IPv4: true})
	for range 2 {
		ns.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/eth7/forwarding; echo 1 > /proc/sys/net/ipv4/conf/eth7/rp_filter")
		for deadline := time.Now().Add(patience); log.Count("an interface does not forward") == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not reported")
			}
		}
	}
	time.Sleep(2 * period) // it is looked at again meanwhile
	for path, want := range map[string]string{"forwarding": "0", "rp_filter": "1"} {
		if got := (setting{ip4Conf + "/eth7/" + path, want}); got.in(ns) != want {
			t.Errorf("%s is %s", path, got.in(ns))
		}
	}
	if n := log.Count("an interface does not forward"); n != 1 || log.Count("interface=eth7") != 1 || log.Count("net.ipv4.conf.eth7.forwarding=1") != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
}

// readOnly makes a file or directory read-only for the calling thread, which is one of Do and is not used again: its
// mount namespace ends with it.
func readOnly(path string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// An interface that cannot go on taking router advertisements is named, and is not a reason to say that forwarding is off.
func TestRouterAdvertisementsCannotBeKept(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "eth7", "type", "bridge")
	var log netnstest.Log
	err := ns.Do(func() error {
		if err := readOnly("/proc/sys/net/ipv6/conf/eth7/accept_ra"); err != nil {
			return err
		}
		s, err := Open(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), VNI: 7, IPv6: true})
		if err != nil {
			return err
		}
		defer s.Close()
		for range 2 {
			if err := os.WriteFile("/proc/sys/"+ip6Forward, []byte("0"), 0); err != nil {
				return err
			}
			if _, err := s.Sync(t.Context(), dataplane.Wanted{}); err != nil {
				return err
			}
			if st := s.Status(); st.State != dataplane.StateOK {
				t.Errorf("status %+v", st)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := (setting{ip6Forward, "1"}); got.in(ns) != "1" {
		t.Error("IPv6 forwarding is off")
	}
	if log.Count("forwarding is off") != 0 || log.Count("takes no router advertisements") != 1 || log.Count("net.ipv6.conf.eth7.accept_ra=2") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
}

// With a read-only /proc/sys each setting that is not as it should be is named once, and nothing fails.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "flannel.7", "type", "bridge")
	var log netnstest.Log
	err := ns.Do(func() error {
		if err := readOnly("/proc/sys"); err != nil {
			return err
		}
		s, err := Open(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), VNI: 7, IPv4: true})
		if err != nil {
			return err
		}
		defer s.Close()
		for range 5 {
			if _, err := s.Sync(t.Context(), dataplane.Wanted{}); err != nil {
				return err
			}
		}
		if st := s.Status(); st.State != dataplane.StateDegraded || !strings.Contains(st.Err, "net.ipv4.ip_forward=1") {
			t.Errorf("status %+v", st)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if log.Count("IPv4 forwarding is off and cannot be turned on") != 1 || log.Count("sysctl -w net.ipv4.conf.flannel/7.rp_filter=2") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestTwoTurnForwardingOn: if two daemons turn forwarding on at once, every interface forwards, and each that comes later.
func TestTwoTurnForwardingOn(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "eth7", "type", "bridge")
	var both [2]*Settings
	for i := range both {
		ns.Must(func() (err error) {
			both[i], err = Open(Config{Log: slog.New(slog.DiscardHandler), VNI: uint32(7 + i), IPv4: true})
			return err
		})
		defer both[i].Close()
	}
	var busy atomic.Bool
	busy.Store(true)
	var wait sync.WaitGroup
	wait.Go(func() { // somebody has the kernel's lock now and then
		for busy.Load() {
			ns.Must(func() error {
				return exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do ip link add x type veth peer name y; ip link del x; done").Run()
			})
		}
	})
	defer wait.Wait()
	defer busy.Store(false)
	for range 100 {
		ns.Must(func() error { return os.WriteFile("/proc/sys/"+ipForward, []byte("0"), 0) })
		var syncs sync.WaitGroup
		for _, s := range both {
			syncs.Go(func() {
				ns.Must(func() error { _, err := s.Sync(t.Context(), dataplane.Wanted{}); return err })
			})
		}
		syncs.Wait()
		for _, path := range []string{ipForward, ip4Conf + "/default/forwarding", ip4Conf + "/eth7/forwarding"} {
			if got := (setting{path, "1"}).in(ns); got != "1" {
				t.Fatalf("%s is %s", path, got)
			}
		}
	}
}

// TestForwardEverywhere: what ip_forward left off is turned on, and no interface stops to forward meanwhile.
func TestForwardEverywhere(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("sh", "-c", "ip link add eth7 type bridge; ip link add eth8 type bridge; sysctl -qw net.ipv4.ip_forward=1")
	ns.Run("sysctl", "-qw", "net.ipv4.conf.default.forwarding=0", "net.ipv4.conf.eth7.forwarding=0")
	var out netnstest.Log
	monitor := exec.Command("ip", "monitor", "netconf")
	monitor.Stdout, monitor.Stderr = &out, &out
	if err := ns.Start(monitor); err != nil {
		t.Fatal(err)
	}
	defer monitor.Wait()
	defer monitor.Process.Kill()
	await := func(what, change string) {
		for deadline := time.Now().Add(patience); out.Count(what) == 0; time.Sleep(10 * time.Millisecond) {
			ns.Run("sysctl", "-qw", change+"=2", change+"=1")
			if time.Now().After(deadline) {
				t.Fatalf("no %q in\n%s", what, out.String())
			}
		}
	}
	await("eth8 rp_filter strict", "net.ipv4.conf.eth8.rp_filter")
	ns.Must(forwardEverywhere)
	for _, path := range []string{ipForward, ip4Conf + "/default/forwarding", ip4Conf + "/eth7/forwarding", ip4Conf + "/eth8/forwarding"} {
		if got := (setting{path, "1"}).in(ns); got != "1" {
			t.Errorf("%s is %s", path, got)
		}
	}
	await("lo rp_filter strict", "net.ipv4.conf.lo.rp_filter")
	if out.Count("forwarding off") > 0 || out.Count("eth7 forwarding on") != 1 {
		t.Error(out.String())
	}
}

// TestReset: a device that is given back has the settings of a new device, but for what is the host's, and what somebody has set to another value.
func TestReset(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "flannel.7", "type", "bridge")
	dev := ip4Conf + "/flannel.7/"
	all := []setting{{dev + "rp_filter", "0"}, {dev + "accept_redirects", "1"}, {dev + "secure_redirects", "1"}, {dev + "send_redirects", "1"}, {dev + "arp_ignore", "0"},
		{dev + "accept_source_route", "1"}, {ip6Conf + "/flannel.7/accept_redirects", "1"}}
	ns.Must(func() error { return rtnl.SetSysctl(ip4Conf+"/default/rp_filter", "0") })
	ns.Must(func() error { return rtnl.SetSysctl(ip4Conf+"/default/accept_source_route", "1") }) // systemd has 0
	for _, s := range all {
		ns.Must(func() error { return rtnl.SetSysctl(s.path, s.value) })
	}
	ns.Must(func() (err error) {
		for _, s := range ofDevice("flannel.7", true, true) {
			err = errors.Join(err, rtnl.SetSysctl(s.path, s.value))
		}
		return errors.Join(err, rtnl.SetSysctl(dev+"arp_ignore", "1"))
	})
	var reset []string
	ns.Must(func() (err error) { reset, err = Reset("flannel.7"); return err })
	if len(reset) != len(all)-1 || !strings.Contains(reset[0], "net.ipv4.conf.flannel/7.rp_filter=0") {
		t.Errorf("reset %q", reset)
	}
	all[4].value = "1" // somebody has set that
	for _, s := range append(all, setting{dev + "forwarding", "1"}) {
		if got := s.in(ns); got != s.value {
			t.Errorf("%s is %s, want %s", s.path, got, s.value)
		}
	}
	if ns.Must(func() (err error) { reset, err = Reset("flannel.7"); return err }); len(reset) > 0 {
		t.Errorf("a second call reset %q", reset)
	}
}
