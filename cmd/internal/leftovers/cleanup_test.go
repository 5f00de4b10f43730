package leftovers

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
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
			if err := os.WriteFile(file, []byte("FLANNEL_NETWORK=10.5.0.0/16\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := nodefile.Claim(file)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(file)
			if err == nil {
				err = n.Wrote(info.ModTime())
			}
			if err != nil {
				t.Fatal(err)
			}
			n.Release()
			var removed []string
			ns.Must(func() error {
				named := []string{file, file} // by --subnet-file, and found in --subnet-dir
				return Cleanup{VNIs: c.vnis, SubnetFiles: named}.Run(t.Context(), func(what string) { removed = append(removed, what) })
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
		{"any device, all overlays", nil, "device", "serves flannel.7"},
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
				processtest.Run(t, asHolder, file)
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

// TestCleanupOfUnknown: if it is not known whether a daemon runs, that is said, and not that one does.
func TestCleanupOfUnknown(t *testing.T) {
	t.Parallel()
	ns := overlayHost(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	ns.Must(func() error {
		netns, err := claim.NetNS()
		if err != nil {
			return err
		}
		dir := claim.Beside(file).Dirs[1]
		loop := filepath.Join(dir, fmt.Sprint(netns, ".7"))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(loop, loop)); err != nil {
			return err
		}
		err = Cleanup{SubnetFiles: []string{file}}.Run(t.Context(), func(what string) { t.Errorf("said %s", what) })
		if !errors.Is(err, syscall.ELOOP) || strings.Contains(err.Error(), "running") {
			t.Errorf("got %v", err)
		}
		return nil
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

// TestNetworksIn: of a subnet file the networks count, whatever else it has.
func TestNetworksIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	if got := networksIn(file); got != nil {
		t.Errorf("no file: %v", got)
	}
	text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_MTU=1450\nFLANNEL_NETWORK=x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(networksIn(file)); got != "[10.5.0.0/16 fd00:5::/48]" {
		t.Errorf("got %s", got)
	}
}
