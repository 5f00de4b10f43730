package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandsOfSeveral: `overlayd lease` asks which network of a daemon that serves several is meant, and `overlayd drain` finds
// that daemon without its flags.
func TestCommandsOfSeveral(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	h, dir := c.hosts[0], t.TempDir()
	c.put("/coreos.com/network/blue/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10}}`)
	c.put("/coreos.com/network/red/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":20}}`)
	d := h.overlayd("--etcd-endpoints", c.url, "--dataplane", modeKernel, "--networks=blue,red", "--subnet-dir", dir)
	for _, name := range []string{"blue", "red"} {
		d.waitLog("msg=ready network="+name, patience)
	}
	// The commands see the directory of the daemon at the place where they look without flags.
	run := func(args string) (int, string) {
		p := h.mountNS("mount -t tmpfs none /run; mkdir -p /run/flannel/networks; mount --bind "+dir+" /run/flannel/networks", strings.Fields(args)...)
		return p.wait(patience), p.text()
	}
	const blue, red = "--etcd-prefix /coreos.com/network/blue", "--etcd-prefix /coreos.com/network/red"
	for _, tt := range []struct {
		args      string
		code      int
		has, lack string
	}{
		{"lease list", exitUsage, blue + ", or " + red, "SUBNET"},
		{"lease revoke 10.5.1.0/24", exitUsage, blue + ", or " + red, ""},
		{"lease release 10.5.1.0/24", exitUsage, blue + ", or " + red, ""},
		{"lease reserve 10.5.1.0/24 --public-ip 192.0.2.9", exitUsage, blue + ", or " + red, ""},
		{"lease list " + blue, 0, "\n10.5.", "10.6."},
		{"lease list --subnet-file " + filepath.Join(dir, "red.env"), 0, "\n10.6.", "10.5."},
		{"drain", 0, "lease given back; the daemon", "does not answer"},
	} {
		if code, out := run(tt.args); code != tt.code || !strings.Contains(out, tt.has) || tt.lack != "" && strings.Contains(out, tt.lack) {
			t.Errorf("%s: exit code %d, want %d, %q and not %q:\n%s", tt.args, code, tt.code, tt.has, tt.lack, out)
		}
	}
}
