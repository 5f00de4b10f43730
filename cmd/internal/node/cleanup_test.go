package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// overlayHost is a host with the devices of two overlays, and one of such a name that overlayd has
// not made.
func overlayHost(t *testing.T) *netnstest.NS {
	ns := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", ns)
	for _, vni := range []string{"7", "8", "9"} {
		ns.Run("ip", "link", "add", "flannel."+vni, "type", "vxlan", "id", vni, "dstport", "8472", "dev", "eth0", "nolearning")
	}
	for _, vni := range []string{"7", "8"} {
		ns.Run("ip", "link", "set", "flannel."+vni, "alias", rtnl.Alias)
	}
	return ns
}

func links(ns *netnstest.NS) (names []string) {
	for line := range strings.Lines(ns.Run("ip", "-o", "link", "show") + "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], "flannel") {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestCleanupScope: cleanup removes the overlays that it is told, or all of them, with their files,
// and reports each thing that it removed; devices of others with such a name stay.
func TestCleanupScope(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		vnis    []uint32
		links   []string
		removed []string
	}{
		{"one", []uint32{7}, []string{"flannel.8", "flannel.9"}, []string{"device flannel.7"}},
		{"two", []uint32{7, 8}, []string{"flannel.9"}, []string{"device flannel.7", "device flannel.8"}},
		{"one that is not there", []uint32{6}, []string{"flannel.7", "flannel.8", "flannel.9"}, nil},
		{"all", nil, []string{"flannel.9"}, []string{"flannel.7", "flannel.8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := overlayHost(t)
			file := filepath.Join(t.TempDir(), "subnet.env")
			n, err := claimNode(file)
			if err != nil {
				t.Fatal(err)
			}
			n.release()
			if err := os.WriteFile(file, []byte("FLANNEL_NETWORK=10.5.0.0/16\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var removed []string
			ns.Must(func() error {
				return Cleanup{VNIs: c.vnis, SubnetFiles: []string{file}}.Run(t.Context(), func(what string) { removed = append(removed, what) })
			})
			if got := links(ns); !slices.Equal(got, c.links) {
				t.Errorf("links %q, want %q", got, c.links)
			}
			for _, want := range append(c.removed, file) {
				if !slices.ContainsFunc(removed, func(what string) bool { return strings.Contains(what, want) }) {
					t.Errorf("removed %q, want %s among it", removed, want)
				}
			}
			if len(removed) != len(c.removed)+1 {
				t.Errorf("removed %q", removed)
			}
			if left, err := filepath.Glob(file + "*"); len(left) > 0 || err != nil {
				t.Errorf("files left: %q, %v", left, err)
			}
		})
	}
}

// TestCleanupBesideDaemon: what a daemon serves stays as it is, whatever tells that it does.
func TestCleanupBesideDaemon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		vnis []uint32
		hold string // "file" or "device": what the daemon has
		says string
	}{
		{"its file, one overlay", []uint32{7}, "file", "is running with subnet file"},
		{"its file, all overlays", nil, "file", "is running with subnet file"},
		{"its device", []uint32{8, 7}, "device", "serves flannel.7"},
		{"any device, all overlays", nil, "device", "serves [flannel.7]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := overlayHost(t)
			file := filepath.Join(t.TempDir(), "subnet.env")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var held *claim.Device
			if c.hold == "file" {
				other(t, asHolder, file)
			} else {
				ns.Must(func() (err error) { held, err = claim.Beside(file).Claim(7); return err })
				defer held.Release()
			}
			err := ns.Do(func() error {
				return Cleanup{VNIs: c.vnis, SubnetFiles: []string{file}}.Run(t.Context(), func(what string) { t.Errorf("removed %s", what) })
			})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if got := links(ns); len(got) != 3 {
				t.Errorf("links %q, want all three", got)
			}
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("another device", func(t *testing.T) {
		ns := overlayHost(t)
		ns.Must(func() error {
			c, err := claim.Beside("").Claim(8)
			if err != nil {
				return err
			}
			defer c.Release()
			return Cleanup{VNIs: []uint32{7}}.Run(t.Context(), func(string) {})
		})
		if got := links(ns); !slices.Equal(got, []string{"flannel.8", "flannel.9"}) {
			t.Errorf("links %q", got)
		}
	})
}

// TestCleanupOfRoutes: of the routes that lead to no device of an overlay, those in its networks go,
// and an administrator's stay.
func TestCleanupOfRoutes(t *testing.T) {
	t.Parallel()
	ns := overlayHost(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(file, []byte("FLANNEL_NETWORK=10.5.3.0/16\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_MTU=1450\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := networksIn(file); !slices.Equal(got, prefixes("10.5.0.0/16", "fd00:5::/48")) {
		t.Errorf("networks %v", got)
	}
	if got := networksIn(file + ".none"); len(got) > 0 {
		t.Errorf("networks of no file: %v", got)
	}
	for _, route := range []string{"10.5.2.0/24 proto 119", "10.6.2.0/24 proto 119", "10.5.9.0/24 proto static"} {
		ns.Run("ip", strings.Fields("route add blackhole "+strings.Replace(route, "119", fmt.Sprint(int(rtnl.RouteProtocol)), 1))...)
	}
	ns.Must(func() error {
		return Cleanup{VNIs: []uint32{7}, SubnetFiles: []string{file}}.Run(t.Context(), func(string) {})
	})
	routes := ns.Run("ip", "route", "show", "type", "blackhole")
	for route, stays := range map[string]bool{"10.5.2.0/24": false, "10.6.2.0/24": true, "10.5.9.0/24": true} {
		if strings.Contains(routes, route) != stays {
			t.Errorf("route %s stays: %v, want %v:\n%s", route, !stays, stays, routes)
		}
	}
}

// TestSubnetFilesIn: the files of several networks are those with a node file beside them.
func TestSubnetFilesIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.env", "b.env.node", "a.env.node", "c.env", "d.node", "e.env.node.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "a.env"), filepath.Join(dir, "b.env")}
	if got := SubnetFilesIn(dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := SubnetFilesIn(filepath.Join(dir, "none")); got != nil {
		t.Errorf("of no directory: %q", got)
	}
	c := Config{SubnetDir: dir}
	for names, want := range map[string]string{"": "a b", "b": "b", "b,a": "a b", "c": ""} {
		c.Networks = nil
		if names != "" {
			c.Networks = strings.Split(names, ",")
		}
		var got []string
		for _, file := range c.servedFiles() {
			got = append(got, networkOf(file))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("networks %q: %q, want %q", names, got, want)
		}
	}
}

// TestLeftoversOfAnotherDaemon: a session removes what the last one left, but for a device that
// another daemon serves by now.
func TestLeftoversOfAnotherDaemon(t *testing.T) {
	t.Parallel()
	ns := overlayHost(t)
	var log logBuffer
	d := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")})
	ns.Must(func() error {
		n := d.newNetwork("")
		if err := n.claim(); err != nil {
			return err
		}
		defer n.release()
		taken, err := n.devices().Claim(8)
		if err != nil {
			return err
		}
		defer taken.Release()
		n.remember(leftovers{[]uint32{7, 8, 9, 77}, nil})
		c, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":77}}`))
		if err != nil {
			return err
		}
		if err := n.takeDevice(t.Context(), c); err != nil {
			return err
		}
		if n.device.VNI != 77 || !slices.Equal(n.left.vnis, []uint32{77}) {
			t.Errorf("device %+v, leftovers %v", n.device, n.left)
		}
		before := n.device
		if err := n.takeDevice(t.Context(), c); err != nil || n.device != before {
			t.Errorf("the next session has claim %+v, %v; want the same", n.device, err)
		}
		c.Backend.VNI = 8
		if err := n.takeDevice(t.Context(), c); !errors.As(err, new(*claim.ServedError)) || n.device != nil {
			t.Errorf("the device of another: %v, %+v", err, n.device)
		}
		return nil
	})
	if got := links(ns); !slices.Equal(got, []string{"flannel.8", "flannel.9"}) {
		t.Errorf("links %q: want 7 to go, 8 to stay with its daemon, 9 because overlayd has not made it", got)
	}
	if log.count("overlay of the last network config is left") != 1 || log.count("removed what the last network config left") != 1 {
		t.Errorf("log:\n%s", log.text())
	}
}

// TestNoClaimDir: a daemon that can claim no device says so once for each, and serves it.
func TestNoClaimDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := claim.Devices{Dirs: []string{filepath.Join(file, "a"), file}}
	if c, err := d.Claim(7); !errors.Is(err, claim.ErrNoDir) || c != nil || !strings.Contains(fmt.Sprint(err), file) {
		t.Errorf("got %+v, %v", c, err)
	}
	if served, err := d.Served(); len(served) > 0 || err != nil {
		t.Errorf("served %q, %v", served, err)
	}
	(*claim.Device)(nil).Release()
	(*nodeFile)(nil).release()
	if err := (*nodeFile)(nil).remember(leftovers{}); err != nil {
		t.Error(err)
	}
}
