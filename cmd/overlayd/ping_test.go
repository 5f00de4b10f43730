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
		cmd := exec.Command("/proc/self/exe", "ping", name, "--subnet-file", h.subnetFile, "-c", "2")
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
	way := "(" + subnet + ") through VXLAN to " + peer.addr.String() + ", UDP port 8472\n"
	for _, name := range []string{subnet, peer.addr.String(), peer.gateway().Addr().String()} {
		pings(0, name, way, "overlay  ", "1450 bytes  2 of 2 answered", "1500 bytes  2 of 2 answered", "behind it  ", "underlay  ", "\nok\n")
	}
	nft(t, peer.NS, "table inet narrow { chain c { type filter hook input priority 0; udp dport 8472 meta length > 1450 drop; }; }")
	pings(exitFailure, subnet, way, "1450 bytes  no answer", "degraded: packets of 1450 bytes do not arrive", "next: ")
	nft(t, peer.NS, "table inet seeded { chain c { type filter hook input priority 0; udp dport 8472 drop; }; }")
	pings(exitFailure, subnet, "84 bytes  no answer", "84 bytes  2 of 2 answered", "down: its host answers at "+peer.addr.String(), "let UDP port 8472 pass")
	pings(exitUsage, "nobody", "no such peer")
	pings(exitUsage, "", "want one peer")
}
