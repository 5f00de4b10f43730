package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestConfigChangedWhileDown: a daemon that starts with another config than the one before it had
// removes the device of that, and its direct routes.
func TestConfigChangedWhileDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, strings.Replace(testNetwork, `"vxlan"`, `"vxlan","DirectRouting":true`, 1))
	c.upPair([2]string{modeKernel, modeUserspace})
	old := c.hosts[1].gateway().Masked()
	direct := func(h *host) (found bool) {
		h.Must(func() error {
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: 211, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
			for _, r := range routes {
				found = found || r.Dst != nil && r.Dst.String() == old.String()
			}
			return err
		})
		return found
	}
	eventually(t, patience, "a direct route", func() error {
		if !direct(c.hosts[0]) {
			return fmt.Errorf("none to %s", old)
		}
		return nil
	})
	for _, h := range c.hosts {
		h.daemon.stop(unix.SIGKILL)
	}
	c.put("/coreos.com/network/config", `{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan","VNI":7}}`)
	for _, h := range c.hosts {
		h.up("--dataplane", modeKernel, "--config-hold", "0")
		h.Must(func() error {
			if _, err := netlink.LinkByName("flannel.1"); err == nil {
				return fmt.Errorf("flannel.1 is left")
			}
			return nil
		})
	}
	if direct(c.hosts[0]) {
		t.Errorf("the route to %s is left", old)
	}
}

// TestDrainBetweenSessions: a daemon whose sessions end, or which waits for its interface, gives its
// lease back at once, and not when it would have tried again.
func TestDrainBetweenSessions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, says string
		times      int // that it says so
		spoil      func(c *cluster)
	}{
		{"device taken", "serves flannel.7", 4, func(c *cluster) { // after the fourth time it waits for 3 s at least
			c.hosts[0].lockDevice(7)
			c.put("/coreos.com/network/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":7}}`)
		}},
		{"interface gone", "waiting for the underlay", 1, func(c *cluster) {
			c.hosts[0].Must(func() error {
				l, err := netlink.LinkByName("under")
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			h := c.hosts[0]
			h.Must(func() error {
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "under"}})
			})
			h.Addr("under", "198.51.100.1/24")
			h.up("--dataplane", modeKernel, "--iface", "under")
			key := h.key()
			tt.spoil(c)
			eventually(t, patience, fmt.Sprintf("%s is logged %d times", tt.says, tt.times), func() error {
				if n := linesWith(h.daemon.text(), tt.says); n < tt.times {
					return fmt.Errorf("%d times", n)
				}
				return nil
			})
			began := now(t)
			p := h.overlayd("drain", "--subnet-file", h.subnetFile)
			if code := p.wait(patience); code != 0 || c.get(key) != "" {
				t.Errorf("exit code %d, lease %q:\n%s", code, c.get(key), p.text())
			}
			if took := began.passed(t); took > promised(3*time.Second) {
				t.Errorf("drained after %s", took)
			}
		})
	}
}

// TestDrainOneOfTwo: if two daemons share a directory for their networks, drain stops the one that is named,
// and neither of them if none is named.
func TestDrainOneOfTwo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	dir := t.TempDir()
	var daemons []*process
	for i, name := range []string{"blue", "red"} {
		c.put("/coreos.com/network/"+name+"/config", fmt.Sprintf(`{"Network":"10.%d.0.0/16","Backend":{"Type":"vxlan","VNI":%[1]d}}`, 5+i))
		d := c.hosts[0].overlayd("--etcd-endpoints", c.url, "--dataplane", modeKernel, "--networks", name, "--subnet-dir", dir)
		d.waitLog("msg=ready", patience)
		daemons = append(daemons, d)
	}
	drain := func(args ...string) (int, string) {
		p := c.hosts[0].overlayd(append([]string{"drain", "--etcd-endpoints", c.url, "--subnet-dir", dir}, args...)...)
		return p.wait(patience), p.text()
	}
	if code, out := drain("--watch-networks"); code != exitFailure || !strings.Contains(out, "two daemons") {
		t.Errorf("drain of both: exit code %d: %s", code, out)
	}
	if code, out := drain("--networks", "red"); code != 0 {
		t.Errorf("drain of red: exit code %d: %s", code, out)
	}
	if code := daemons[1].wait(promised(time.Second)); code != 0 {
		t.Errorf("red: exit code %d", code)
	}
	if code, out := drain("--networks", "green"); code != 0 || !strings.Contains(out, "nothing to give back") {
		t.Errorf("drain of what was never served: exit code %d: %s", code, out)
	}
	if code := daemons[0].stop(unix.SIGTERM); code != 0 || strings.Contains(daemons[0].text(), "given back") {
		t.Errorf("blue: exit code %d:\n%s", code, daemons[0].text())
	}
}

// TestNoNetworkOfInterest: a daemon that has no network to wait for tells systemd that it is ready.
func TestNoNetworkOfInterest(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	c.put("/coreos.com/network/other/config", testNetwork)
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.hosts[0].overlaydWith([]string{"NOTIFY_SOCKET=" + path}, "--etcd-endpoints", c.url,
		"--watch-networks", "--networks", "mine", "--subnet-dir", t.TempDir())
	l.SetReadDeadline(time.Now().Add(promised(5 * time.Second)))
	b := make([]byte, 1000)
	for {
		n, _, err := l.ReadFrom(b)
		if got := string(b[:n]); err != nil || got != "READY=1" && !strings.HasPrefix(got, "STATUS=") {
			t.Fatalf("got %q, %v", got, err)
		} else if got == "READY=1" {
			return
		}
	}
}
