//go:build flannel

package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// flanneld starts a real flanneld (etcd, vxlan) on the host and waits until it
// watches the leases.
func (h *host) flanneld(more ...string) {
	h.c.t.Helper()
	h.flanneldWith(nil, append([]string{"-etcd-endpoints", h.c.url}, more...)...)
	h.daemon.waitLog("watching for new subnet leases", patience)
}

// flanneldProgram is OVERLAYD_FLANNELD, which make test-flannel builds.
func flanneldProgram(t *testing.T) string {
	t.Helper()
	program := os.Getenv("OVERLAYD_FLANNELD")
	if program == "" {
		t.Fatal("OVERLAYD_FLANNELD is not set: run make test-flannel")
	}
	return program
}

// flanneldWith starts a real flanneld with these environment variables and arguments besides the
// usual ones.
func (h *host) flanneldWith(env []string, args ...string) {
	h.c.t.Helper()
	cmd := exec.Command(flanneldProgram(h.c.t), append(args, "-iface", "eth0", "-ip-masq", "-subnet-file", h.subnetFile)...)
	path := "/usr/sbin:/sbin:" + os.Getenv("PATH") // iptables
	if h.c.path != "" {
		path = h.c.path + ":" + path
	}
	cmd.Env = append(append(os.Environ(), "PATH="+path), env...)
	h.daemon = startCommand(h.c.t, h.NS, h.name+" flanneld", cmd)
	// The CNI plugin does that, not flanneld.
	h.Must(func() error { return errors.Join(rtnl.SetSysctl(ipForward, "1"), rtnl.SetSysctl(ip6Forward, "1")) })
}

// everySwap leads from each mode to each.
var everySwap = []string{modeFlanneld, modeKernel, modeKernel, modeUserspace, modeUserspace, modeFlanneld, modeUserspace, modeKernel, modeFlanneld}

// TestFlanneldSwapMatrix: a host becomes each of flanneld, kernel and userspace in the place of
// each.
func TestFlanneldSwapMatrix(t *testing.T) {
	for _, m := range []struct {
		name, config string
		under        []string
	}{
		{"v4", testNetwork, []string{under4}},
		{"dual", dualNetwork, []string{under4, under6}},
	} {
		t.Run("etcd/"+m.name, func(t *testing.T) {
			alone(t)
			s := &swaps{t: t, host: newClusterOn(t, m.under, 3, m.config).hosts[0]}
			s.begin(modeFlanneld, modeFlanneld, func(h *host, mode string) {
				if mode == modeFlanneld {
					h.flanneld()
				} else {
					h.up("--dataplane", mode, "--ip-masq")
				}
			})
			for _, mode := range everySwap {
				s.to(mode)
			}
		})
	}
}

// TestFlanneldInOneCluster: the pods of a flanneld, and of an overlayd in either
// dataplane, reach each other with every byte checked.
func TestFlanneldInOneCluster(t *testing.T) {
	c := newCluster(t, 3, testNetwork)
	c.hosts[0].flanneld()
	c.hosts[1].up("--dataplane", modeKernel)
	c.hosts[2].up("--dataplane", modeUserspace)
	pods := make([]*pod, len(c.hosts))
	for i, h := range c.hosts {
		pods[i] = h.pod(0, 0)
	}
	for _, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
		i, j := pair[0], pair[1]
		warmUp(t, pods[i], pods[j])
		checkPair(t, c.hosts[i], pods[i], c.hosts[j], pods[j], 10<<20)
	}
}

// TestFlanneldSwappedInPlace: an overlayd started in place of a flanneld keeps the
// subnet and its pods' connections to other hosts, in either dataplane; a flanneld
// started in place of that overlayd keeps the subnet too.
func TestFlanneldSwappedInPlace(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			swapped, other := c.hosts[0], c.hosts[1]
			swapped.flanneld()
			other.flanneld()
			a, b := swapped.pod(0, 0), other.pod(0, 0)
			warmUp(t, a, b)
			subnet := swapped.gateway()

			swapped.daemon.stop(unix.SIGTERM)
			swapped.up("--dataplane", mode, "--ip-masq")
			if got := swapped.gateway(); got != subnet {
				t.Fatalf("overlayd has subnet %s, flanneld had %s", got, subnet)
			}
			warmUp(t, a, b)
			checkPair(t, swapped, a, other, b, 10<<20)

			if code := swapped.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("overlayd: exit code %d", code)
			}
			swapped.flanneld()
			if got := swapped.gateway(); got != subnet {
				t.Fatalf("flanneld has subnet %s, overlayd had %s", got, subnet)
			}
			warmUp(t, a, b)
		})
	}
}
