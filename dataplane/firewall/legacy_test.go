package firewall

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/xtables"
)

// FuzzLegacy: whatever the kernel says that a table is, following a packet through it ends, however chains jump, and nothing is sure that no rule
// says. The corpus has tables of Linux 6.18.
func FuzzLegacy(f *testing.F) {
	f.Add(make([]byte, 100), make([]byte, 400), false, uint8(17))
	f.Fuzz(func(t *testing.T, about, entries []byte, six bool, protocol uint8) {
		family, a, b := nft.IPv4, netip.MustParseAddr("10.5.1.2"), netip.MustParseAddr("10.5.2.2")
		if six {
			family, a, b = nft.IPv6, netip.MustParseAddr("fd00:5:1::2"), netip.MustParseAddr("fd00:5:2::2")
		}
		l := newLegacy(xtables.Parse(family, "filter", about, entries))
		through := Packet{Path: Forwarded, In: "cni0", Protocol: protocol, Src: a, Dst: b, DstPort: 80}
		for _, p := range append(Tunnel("eth0", a, netip.Addr{}, 8472), through) {
			for _, d := range l.drops(p) {
				if d.Table != "filter" || !d.Legacy || d.Sure && d.Rule == "" {
					t.Fatalf("%+v", d)
				}
			}
			for _, hook := range p.hooks() {
				first, policy, _ := l.table.First(hook)
				pass := legacyPass{legacy: l, packet: p, hook: hook}
				pass.chain(first, policy, 0)
				if pass.steps > maxSteps {
					t.Fatalf("%d steps", pass.steps)
				}
			}
		}
	})
}

// TestLegacyLoops: chains that jump to each other, which no kernel loads, cost no more than any other.
func TestLegacyLoops(t *testing.T) {
	t.Parallel()
	rule := func(to int) xtables.Rule {
		return xtables.Rule{At: 100 * to, Next: 100*to + 100, Verdict: 0}
	}
	l := &legacy{table: xtables.Table{Family: nft.IPv4, Name: "filter"}, rules: []xtables.Rule{rule(0), rule(1), rule(2)}, at: map[int]int{0: 0, 100: 1, 200: 2}}
	pass := legacyPass{legacy: l, packet: Through(netip.MustParseAddr("10.5.1.2"), netip.MustParseAddr("10.5.2.2"), "", ""), hook: unix.NF_INET_FORWARD}
	may, _ := pass.chain(0, 200, 0)
	if may&accepted == 0 || may&dropped == 0 || pass.steps > maxSteps {
		t.Errorf("%b after %d steps, want anything", may, pass.steps)
	}
}
