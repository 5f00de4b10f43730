//go:build ship

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/rights"
)

// maxExposure is the worst that systemd-analyze may think of a unit, in tenths.
const maxExposure = "30"

// TestShipUnits: systemd understands all of both units, and thinks that they may do little.
func TestShipUnits(t *testing.T) {
	root := unpacked(t)
	command(t, "install", "-D", "/bin/sh", filepath.Join(root, "bin/sh")) // which every host has
	dir := filepath.Join(root, "usr/lib/systemd/system")
	for _, unit := range []string{"overlayd.service", "overlayd@.service"} {
		cmd := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "--root="+root, filepath.Join("/usr/lib/systemd/system", strings.Replace(unit, "@", "@blue", 1)))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		out := command(t, "systemd-analyze", "security", "--offline=true", "--threshold="+maxExposure, "--no-pager", filepath.Join(dir, unit))
		t.Log(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:])
	}
}

// unitRights runs a command with the capabilities of the unit and no others.
func unitRights(t *testing.T) []string {
	t.Helper()
	set := "-all"
	for _, name := range strings.Fields(unit(t, "CapabilityBoundingSet")) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return []string{"setpriv", "--bounding-set", set, "--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs"}
}

// TestShipUnitRights: three hosts whose daemons have the unit's capabilities only reach each other, whichever dataplane each has, and
// nothing is said about a right that lacks.
func TestShipUnitRights(t *testing.T) {
	program := filepath.Join(unpacked(t), "usr/bin/overlayd")
	c := newCluster(t, 3, strings.Replace(testNetwork, "{", `{"EnableNFTables":true,`, 1))
	modes := []string{modeKernel, modeUserspace, modeUserspace}
	pods := make([]*pod, len(modes))
	for i, h := range c.hosts {
		args := append(unitRights(t), program, "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--ip-masq", "--dataplane", modes[i])
		h.daemon = startCommand(t, h.NS, h.name, exec.Command(args[0], args[1:]...))
	}
	for i, h := range c.hosts {
		h.daemon.waitLog("msg=ready", patience)
		pods[i] = h.pod(0, 0)
		if err := has(h.daemon.cmd.Process.Pid, rights.NetAdmin|rights.NetRaw, rights.NetAdmin|rights.NetRaw); err != nil {
			t.Errorf("%s: %v", h.name, err)
		}
	}
	for _, h := range c.hosts { // what a peer sends to a host that does not know it yet is a warning there
		eventually(t, patience, h.name+" knows its peers", func() error {
			if n := linesWith(h.daemon.text(), `msg="peer added"`); n < len(c.hosts)-1 {
				return fmt.Errorf("%d of %d", n, len(c.hosts)-1)
			}
			return nil
		})
	}
	for i, a := range pods {
		for j, b := range pods[:i] {
			warmUp(t, a, b)
			checkPair(t, c.hosts[i], a, c.hosts[j], b, 1<<20)
		}
	}
	for _, h := range c.hosts {
		if _, err := os.Stat(h.subnetFile); err != nil {
			t.Error(err)
		}
		if code := h.daemon.stop(unix.SIGTERM); code != 0 {
			t.Errorf("%s: exit code %d", h.name, code)
		}
		for _, line := range unexpected(h.daemon.text()) {
			t.Errorf("%s: %s", h.name, line)
		}
	}
}
