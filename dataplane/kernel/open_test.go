package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// asFlannel are the attributes that the device of flannel v0.28 shows.
const asFlannel = "vxlan id 1 local 192.0.2.2 dev eth0 srcport 0 0 dstport 8472 nolearning ttl auto ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx"

func TestDeviceHasFlannelsAttributes(t *testing.T) {
	ours, byHand := newHosts(t, 1)[0], newHosts(t, 1)[0]
	ours.cfg.Underlays[0].Public = netip.MustParseAddr("198.51.100.7") // behind NAT: never the device's own address
	ours.open()
	byHand.Run("ip", "link", "add", "flannel.1", "mtu", "1450", "txqueuelen", "0", "type", "vxlan", "id", "1",
		"local", "192.0.2.2", "dev", "eth0", "dstport", "8472", "nolearning")
	byHand.Run("ip", "link", "set", "flannel.1", "up")
	a, b := *ours.link(), *byHand.link()
	if a.HardwareAddr.String() != dataplane.MAC(ours.cfg.Underlays[0].Public, 1).String() || a.Alias != rtnl.Alias {
		t.Errorf("MAC %s, alias %q", a.HardwareAddr, a.Alias)
	}
	ours.Must(func() error {
		v, err := os.ReadFile("/proc/sys/net/ipv6/conf/flannel.1/accept_ra")
		if err == nil && string(v) != "0\n" {
			err = fmt.Errorf("accept_ra is %q", v)
		}
		return err
	})
	for _, v := range []*netlink.Vxlan{&a, &b} { // what has to differ
		v.HardwareAddr, v.PermHWAddr, v.Alias, v.Index, v.VtepDevIndex, v.ParentIndex = nil, nil, "", 0, 0, 0
		v.Statistics, v.AltNames = nil, nil
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("by hand (-), ours (+):\n%s", diff)
	}
	if out := ours.Run("ip", "-d", "link", "show", "flannel.1"); !strings.Contains(out, asFlannel) {
		t.Errorf("want %s in\n%s", asFlannel, out)
	}
}

func TestOpenAdoptsACompatibleDevice(t *testing.T) {
	h := newHosts(t, 1)[0]
	h.Run("ip", "link", "add", "flannel.1", "address", "0e:2a:00:00:00:01", "mtu", "1400", "type", "vxlan", "id", "1",
		"local", "192.0.2.2", "dev", "eth0", "dstport", "8472", "nolearning")
	before := h.link()
	h.open()
	after := h.link()
	if after.Index != before.Index || after.HardwareAddr.String() != "0e:2a:00:00:00:01" || after.MTU != 1450 || !isUp(after.Attrs()) || after.Alias != rtnl.Alias {
		t.Errorf("got %+v", after.LinkAttrs)
	}
	want := dataplane.VTEP{Addr: h.cfg.Underlays[0].Public, MAC: mustMAC("0e:2a:00:00:00:01"), VNI: 1}
	if got := h.dp.VTEPs(); len(got) != 1 || got[0] != want {
		t.Errorf("VTEPs are %v, want %v", got, want)
	}
}

func TestOpenMakesAnIncompatibleDeviceAgainWithItsMAC(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"VNI", []string{"id", "2", "local", "192.0.2.2", "dev", "eth0", "dstport", "8472", "nolearning"}},
		{"local", []string{"id", "1", "local", "192.0.2.99", "dev", "eth0", "dstport", "8472", "nolearning"}},
		{"link", []string{"id", "1", "local", "192.0.2.2", "dstport", "8472", "nolearning"}},
		{"port", []string{"id", "1", "local", "192.0.2.2", "dev", "eth0", "dstport", "4789", "nolearning"}},
		{"learning", []string{"id", "1", "local", "192.0.2.2", "dev", "eth0", "dstport", "8472"}},
		{"group", []string{"id", "1", "local", "192.0.2.2", "group", "239.1.1.1", "dev", "eth0", "dstport", "8472", "nolearning"}},
		{"l2miss", []string{"id", "1", "local", "192.0.2.2", "dev", "eth0", "dstport", "8472", "nolearning", "l2miss"}},
		{"gbp", []string{"id", "1", "local", "192.0.2.2", "dev", "eth0", "dstport", "8472", "nolearning", "gbp"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHosts(t, 1)[0]
			h.Run("ip", append([]string{"link", "add", "flannel.1", "address", "0e:2a:00:00:00:01", "type", "vxlan"}, tc.args...)...)
			h.open()
			if out := h.Run("ip", "-d", "link", "show", "flannel.1"); !strings.Contains(out, asFlannel) || !strings.Contains(out, "0e:2a:00:00:00:01") {
				t.Error(out)
			}
		})
	}
}

// makeTUN leaves a persistent TUN device under the overlay device's name.
func makeTUN(h *host) {
	h.Must(func() error {
		c := water.Config{DeviceType: water.TUN, PlatformSpecificParams: water.PlatformSpecificParams{Name: "flannel.1", Persist: true}}
		tun, err := water.New(c)
		if err == nil {
			err = tun.Close()
		}
		return err
	})
}

// The TUN device stays until there are routes to all peers, and goes then.
func TestSyncTakesThePlaceOfATUN(t *testing.T) {
	h := newHosts(t, 1)[0]
	makeTUN(h)
	h.open()
	if out := h.Run("ip", "-d", "link", "show", "flannel.1"); !strings.Contains(out, " tun ") {
		t.Errorf("before Sync: %s", out)
	}
	h.sync(wanted(manyPeers(3)...))
	if out := h.Run("ip", "-d", "link", "show", "flannel.1"); !strings.Contains(out, asFlannel) {
		t.Error(out)
	}
	h.expect(wanted(manyPeers(3)...))
	if out := h.Run("ip", "-br", "link"); strings.Contains(out, rtnl.TemporaryPrefix) {
		t.Errorf("left: %s", out)
	}
	h.Must(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/flannel.1/accept_ra")
		if err == nil && string(b) != "0\n" {
			t.Errorf("accept_ra is %q", b)
		}
		return err
	})
}

// A kernel before 6.2 renames no device that is up: it goes down for that, but not if somebody else has the name.
func TestRenameOnAnOldKernel(t *testing.T) {
	w := wanted(manyPeers(3)...)
	up := func(h *host, name string) {
		t.Helper()
		if out := h.Run("ip", "link", "show", name); !strings.Contains(out, ",UP") {
			t.Errorf("%s is not up: %s", name, out)
		}
	}
	h := newHosts(t, 1)[0]
	makeTUN(h)
	h.open()
	h.dp.rt.NoLiveRename = true
	h.Run("sh", "-c", "ip link del flannel.1; ip link add flannel.1 type bridge")
	if _, err := h.dp.Sync(t.Context(), w); err == nil || !strings.Contains(err.Error(), "a device of type bridge has this name") {
		t.Errorf("got %v", err)
	}
	up(h, h.dp.tunnels[0].name)
	h.Run("ip", "link", "del", "flannel.1")
	h.sync(w)
	h.expect(w)
	h.Run("sh", "-c", "ip link set flannel.1 name xx1; ip link add flannel.1 type bridge")
	if _, err := h.dp.Sync(t.Context(), w); err == nil {
		t.Error("no error while somebody else has the name")
	}
	up(h, "xx1")
	h.Run("ip", "link", "del", "flannel.1")
	index := h.dp.tunnels[0].index
	h.sync(w)
	h.expect(w)
	if got := h.link().Index; got != index {
		t.Errorf("device %d instead of %d", got, index)
	}
}

// A dataplane that is to bring its devices up later needs the port only then; if that never
// comes, nothing is left of it.
func TestOpenLater(t *testing.T) {
	for _, sync := range []bool{true, false} {
		h := newHosts(t, 1)[0]
		makeTUN(h)
		before := h.Run("ip", "link")
		var c net.PacketConn
		h.Must(func() (err error) { c, err = net.ListenPacket("udp4", ":8472"); return err })
		h.cfg.Later, h.cfg.Underlays[0].MAC = true, mustMAC("0e:2a:00:00:00:01")
		h.open()
		if !sync {
			c.Close()
			h.dp.Close()
			if diff := cmp.Diff(before, h.Run("ip", "link")); diff != "" {
				t.Error(diff)
			}
			continue
		}
		w := wanted(manyPeers(3)...)
		if _, err := h.dp.Sync(t.Context(), w); !errors.Is(err, ErrPortInUse) {
			t.Errorf("got %v", err)
		}
		c.Close()
		h.sync(w)
		if out := h.Run("ip", "-br", "link", "show", "type", "tun"); !strings.Contains(out, "flannel.1") {
			t.Errorf("the TUN device has not waited: %s", out)
		}
		h.Must(func() error { return h.dp.TakePlace(t.Context()) })
		h.expect(w)
		if got := h.link().HardwareAddr.String(); got != "0e:2a:00:00:00:01" {
			t.Errorf("MAC %s", got)
		}
	}
}

func TestOpenLeavesAnyOtherDevice(t *testing.T) {
	h := newHosts(t, 1)[0]
	h.Run("ip", "link", "add", "flannel.1", "type", "bridge")
	before := h.Run("ip", "link")
	if err := h.try(); err == nil || !strings.Contains(err.Error(), "ip link del flannel.1") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, h.Run("ip", "link")); diff != "" {
		t.Error(diff)
	}
}

func TestRefusalLeavesTheTUN(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(h *host) // returns when the reason of the refusal is there
		says    string
	}{
		{"socket", func(h *host) {
			var c net.PacketConn
			h.Must(func() (err error) { c, err = net.ListenPacket("udp4", ":8472"); return err })
			h.tb.Cleanup(func() { c.Close() })
		}, "ss -lunp 'sport = :8472'"},
		{"device", func(h *host) {
			h.Run("ip", "link", "add", "other", "type", "vxlan", "id", "1", "dstport", "8472", "dev", "eth0")
		}, "device other has VNI 1 on port 8472"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHosts(t, 1)[0]
			tc.prepare(h)
			err := h.try()
			if !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v", err)
			}
			if out, err := h.Output("ip", "link", "show", "flannel.1"); err == nil {
				t.Errorf("left: %s", out)
			}
			makeTUN(h)
			before := h.Run("ip", "link")
			if err := h.try(); !errors.Is(err, ErrPortInUse) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(before, h.Run("ip", "link")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOpenWithoutCapability(t *testing.T) {
	h := newHosts(t, 1)[0]
	for _, adopt := range []bool{false, true} {
		if adopt {
			h.open().dp.Close()
		}
		err := h.Do(func() error { // the thread, and its lack of capabilities, ends with this
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&head, &none[0]); err != nil {
				return err
			}
			_, err := Open(h.cfg)
			return err
		})
		if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("adopt %v: got %v", adopt, err)
		}
	}
}

func TestUnderlayLinkGone(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB))
	h.Run("ip", "link", "del", "eth0") // the kernel removes the vxlan device with it
	if _, err := h.dp.Sync(t.Context(), wanted(peerB)); !errors.Is(err, ErrUnderlayGone) {
		t.Errorf("Sync: %v", err)
	}
}

// TestRunEndsWithTheUnderlayLink: only a new Open can find the link that comes in
// the place of the one that went.
func TestRunEndsWithTheUnderlayLink(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB))
	ended := make(chan error, 1)
	go func() { ended <- h.dp.Run(t.Context(), func() {}) }()
	h.Run("ip", "link", "del", "eth0")
	select {
	case err := <-ended:
		if !errors.Is(err, ErrUnderlayGone) {
			t.Errorf("got %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Run goes on")
	}
}

func TestOpenRefusesABadConfig(t *testing.T) {
	addr := netip.MustParseAddr
	good := func() Config {
		u := dataplane.Underlay{Link: 1, Local: addr("192.0.2.1"), Public: addr("192.0.2.1")}
		return Config{Underlays: []dataplane.Underlay{u}, VNI: 1, Port: 8472, MTU: 1450}
	}
	six := dataplane.Underlay{Link: 1, Local: addr("2001:db8::1"), Public: addr("2001:db8::1")}
	for _, tc := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Underlays = nil }, "0 underlays"},
		{func(c *Config) { c.Underlays = append(c.Underlays, c.Underlays[0]) }, "2 underlays"},
		{func(c *Config) { c.Underlays = append(c.Underlays, six, six) }, "3 underlays"},
		{func(c *Config) { c.Underlays[0].Link = 0 }, "link index 0"},
		{func(c *Config) { c.Underlays[0].Public = addr("2001:db8::1") }, "one family"},
		{func(c *Config) { c.Underlays[0].Public = addr("::ffff:192.0.2.1") }, "one family"},
		{func(c *Config) { c.VNI = 1<<24 - 1 }, "VNI 16777215"},
		{func(c *Config) { c.Underlays, c.VNI = append(c.Underlays, six), 10000 }, "device flannel-v6.10000"},
		{func(c *Config) { c.Port = 0 }, "port 0"},
		{func(c *Config) { c.MTU = -1 }, "MTU -1"},
	} {
		c := good()
		tc.change(&c)
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("want %q, got %v", tc.says, err)
		}
	}
}

func TestExplainNamesTheFix(t *testing.T) {
	c := &Config{Port: 8472}
	for errno, want := range map[error]error{unix.EPERM: ErrPermission, unix.EOPNOTSUPP: ErrUnsupported, unix.EADDRINUSE: ErrPortInUse} {
		if err := explain(os.NewSyscallError("x", errno), c); !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := explain(unix.EINVAL, c); err != unix.EINVAL {
		t.Error(err)
	}
}

func TestStatsCountSinceOpen(t *testing.T) {
	hosts := newHosts(t, 2)
	a, b := join(t, hosts)
	echo(t, a, b, 100, time.Second)
	s := a.dp.Stats()
	if s.TxPackets != 1 || s.RxPackets != 1 || s.TxBytes != 128 {
		t.Errorf("got %+v", s)
	}
	a.dp.Close()
	a.open()
	if s := a.dp.Stats(); s.TxPackets+s.RxPackets+s.TxBytes+s.RxBytes != 0 { // the kernel may drop a packet of its own meanwhile
		t.Errorf("after restart: %+v", s)
	}
}
