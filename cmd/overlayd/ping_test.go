package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestPing: a peer answers through the overlay and the underlay; what does not arrive is said, one line each.
func TestPing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.upPair([2]string{modeKernel, modeUserspace}, "--probe-interval=0")
	h, peer := c.hosts[0], c.hosts[1]
	pings := func(want int, name string, parts ...string) {
		t.Helper()
		var out []byte
		cmd := exec.Command("/proc/self/exe", "ping", name, "--subnet-file", h.subnetFile, "--wait=500ms")
		cmd.Env = append(cmd.Environ(), asOverlayd+"=1")
		h.Must(func() error { out, _ = cmd.CombinedOutput(); return nil }) // its exit code says more
		for _, part := range parts {
			if !strings.Contains(string(out), part) {
				t.Errorf("ping %s: no %q in\n%s", name, part, out)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("ping %s: exit code %d:\n%s", name, code, out)
		}
	}
	subnet := peer.gateway().Masked().String()
	vxlan := "through VXLAN to " + peer.addr.String() + ", UDP port 8472: "
	for _, name := range []string{subnet, peer.addr.String(), peer.gateway().Addr().String()} {
		pings(0, name, "("+subnet+"): small, "+vxlan, "1450 bytes, "+vxlan, "small, underlay: ", " ms\n")
	}
	c.under.Run("ip", "link", "set", "port1", "mtu", "1400")
	pings(exitFailure, subnet, "small, "+vxlan, "1450 bytes, "+vxlan+"no answer")
	nft(t, peer.NS, "table inet seeded { chain c { type filter hook input priority 0; udp dport 8472 drop; }; }")
	pings(exitFailure, subnet, "small, "+vxlan+"no answer", "small, underlay: ", " ms\n")
	peer.Run("ip", "link", "set", "eth0", "down")
	pings(exitFailure, subnet, "small, underlay: no answer")
	pings(exitUsage, "nobody", "no such peer")
	pings(exitUsage, "", "want one peer")
}
