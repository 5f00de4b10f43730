package main

import (
	"strings"
	"testing"
)

// TestLeaseOnTheFirstHost: if a daemon runs, `overlayd lease` needs no flags to find its etcd, even the
// one inside it and with a prefix from the environment; flags that are given win, and plain http is the daemon's to warn of.
func TestLeaseOnTheFirstHost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	h := c.hosts[0]
	h.daemon = h.overlaydWith([]string{"FLANNELD_ETCD_PREFIX=/else/where"}, "--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url", "http://192.0.2.2:2379",
		"--etcd-data-dir", t.TempDir(), "--network", "10.5.0.0/16", "--subnet-file", h.subnetFile, "--dataplane", modeUserspace)
	h.daemon.waitLog("msg=ready", patience)
	subnet := h.gateway().Masked().String()
	for _, tt := range []struct {
		args      string
		code      int
		has, lack string
	}{
		{"", 0, subnet, "level="},
		{"--etcd-prefix /else/where", 0, subnet, "level="},
		{"--etcd-prefix /elsewhere", 1, "/elsewhere", subnet},
		{"--etcd-endpoints http://192.0.2.1:2379", 0, "SUBNET", subnet}, // another etcd, the default prefix
	} {
		p := h.overlayd(append(strings.Fields("lease list --subnet-file "+h.subnetFile), strings.Fields(tt.args)...)...)
		code := p.wait(patience)
		if out := p.text(); code != tt.code || !strings.Contains(out, tt.has) || strings.Contains(out, tt.lack) {
			t.Errorf("lease list %s: exit code %d, want %q and not %q:\n%s", tt.args, code, tt.has, tt.lack, out)
		}
	}
	h.daemon.stop(15)
	p := h.overlayd("lease", "list", "--subnet-file", h.subnetFile)
	if code := p.wait(patience); code != exitFailure || !strings.Contains(p.text(), "127.0.0.1:4001") {
		t.Errorf("without a daemon: exit code %d:\n%s", code, p.text())
	}
}
