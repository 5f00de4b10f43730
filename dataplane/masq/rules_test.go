package masq

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

const goldenIPv4 = `
-p udp -m udp --dport 8472 -m addrtype --src-type LOCAL -m comment --comment "overlayd masq" -j RETURN
-m mark --mark 0x4000/0x4000 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "overlayd masq" -j RETURN
! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.0.0/16 ! -d 224.0.0.0/4 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully
! -s 10.244.0.0/16 -d 10.244.0.0/16 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully`

func goldenForward(network string) string {
	return strings.ReplaceAll(`
-s NETWORK -m comment --comment "overlayd forward" -j ACCEPT
-d NETWORK -m comment --comment "overlayd forward" -j ACCEPT`, "NETWORK", network)
}

// goldenMixed is for a network that holds addresses of the underlay: what hosts send each other is
// not translated, and what pods send to hosts is.
const goldenMixed = `
-p udp -m udp --dport 8472 -m addrtype --src-type LOCAL -m comment --comment "overlayd masq" -j RETURN
-m mark --mark 0x4000/0x4000 -m comment --comment "overlayd masq" -j RETURN
-d 10.244.1.0/24 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 -o flannel.7 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 -o flannel-v6.7 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 ! -d 224.0.0.0/4 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
-s 10.244.1.0/24 ! -d 224.0.0.0/4 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully
! -s 10.244.1.0/24 -d 10.244.0.0/16 -o flannel.7 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
! -s 10.244.1.0/24 -d 10.244.0.0/16 -o flannel.7 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully
! -s 10.244.1.0/24 -d 10.244.0.0/16 -o flannel-v6.7 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
! -s 10.244.1.0/24 -d 10.244.0.0/16 -o flannel-v6.7 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully`

const goldenMixedForward = `
-s 10.244.1.0/24 -m comment --comment "overlayd forward" -j ACCEPT
-d 10.244.1.0/24 -m comment --comment "overlayd forward" -j ACCEPT
-i flannel.7 -m comment --comment "overlayd forward" -j ACCEPT
-o flannel.7 -m comment --comment "overlayd forward" -j ACCEPT
-i flannel-v6.7 -m comment --comment "overlayd forward" -j ACCEPT
-o flannel-v6.7 -m comment --comment "overlayd forward" -j ACCEPT`

// goldenMixedDirect is goldenMixed if packets reach pods by the underlay, too.
const goldenMixedDirect = `
-p udp -m udp --dport 8472 -m addrtype --src-type LOCAL -m comment --comment "overlayd masq" -j RETURN
-m mark --mark 0x4000/0x4000 -m comment --comment "overlayd masq" -j RETURN
-d 10.244.1.0/24 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "overlayd masq" -j RETURN
-s 10.244.1.0/24 ! -d 224.0.0.0/4 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
-s 10.244.1.0/24 ! -d 224.0.0.0/4 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully
! -s 10.244.0.0/16 -d 10.244.0.0/16 -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "overlayd masq" -j MASQUERADE --random-fully`

func TestBuild(t *testing.T) {
	all := Config{Port: testVXLANPort, Masquerade: true, Forward: true, RandomFully: true}
	change := func(f func(*Config)) Config { c := all; f(&c); return c }
	v6 := strings.NewReplacer(testSubnet, testSubnet6, testNetwork, testNetwork6, "224.0.0.0/4", "ff00::/8").Replace(goldenIPv4)
	forward4, forward6 := goldenForward("10.244.0.0/16"), goldenForward("fd00:244::/48")
	mixed := dataplane.Wanted{Networks: prefixes(testNetwork), Subnets: prefixes(testSubnet), Underlay: wantedMixed().Underlay}
	for _, c := range []struct {
		name   string
		config Config
		wanted dataplane.Wanted
		want   [4]string // masquerade and forward of IPv4, of IPv6
	}{
		{"both families", all, wanted(), [4]string{goldenIPv4, forward4, v6, forward6}},
		{"IPv4 only", all, dataplane.Wanted{Networks: prefixes(testNetwork), Subnets: prefixes(testSubnet)}, [4]string{goldenIPv4, forward4}},
		{"IPv6 only", all, dataplane.Wanted{Networks: prefixes(testNetwork6), Subnets: prefixes(testSubnet6)}, [4]string{2: v6, 3: forward6}},
		{"no lease yet", all, dataplane.Wanted{Networks: prefixes(testNetwork)}, [4]string{}},
		{"without masquerading", change(func(c *Config) { c.Masquerade = false }), wanted(), [4]string{"", forward4, "", forward6}},
		{"without forwarding", change(func(c *Config) { c.Forward = false }), wanted(), [4]string{goldenIPv4, "", v6, ""}},
		{"ports not at random", change(func(c *Config) { c.RandomFully, c.Forward = false, false }), wanted(),
			[4]string{strings.ReplaceAll(goldenIPv4, " --random-fully", ""), "", strings.ReplaceAll(v6, " --random-fully", ""), ""}},
		{"another port", change(func(c *Config) { c.Port, c.Forward = 50000, false }), dataplane.Wanted{Networks: prefixes(testNetwork), Subnets: prefixes(testSubnet)},
			[4]string{strings.NewReplacer("8472", "50000", "8473-65535", "1024-49999").Replace(goldenIPv4)}},
		{"the underlay inside", change(func(c *Config) { c.VNI = 7 }), mixed, [4]string{goldenMixed, goldenMixedForward}},
		{"the underlay inside, direct routes", change(func(c *Config) { c.VNI, c.Forward, c.Direct = 7, false, true }), mixed, [4]string{goldenMixedDirect}},
		{"the underlay outside, direct routes", change(func(c *Config) { c.Direct = true }), wanted(), [4]string{goldenIPv4, forward4, v6, forward6}},
	} {
		var got [4]string
		for i, s := range build(c.config, c.wanted) {
			got[2*i], got[2*i+1] = specifications(s.masq), specifications(s.forward)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func specifications(rules []rule) (text string) {
	for _, r := range rules {
		text += "\n" + specification(r)
	}
	return text
}

func TestPortsBeside(t *testing.T) {
	for port, want := range map[uint16]portRange{
		8472: {8473, 65535}, 4789: {4790, 65535}, 50000: {1024, 49999}, 65535: {1024, 65534},
		1: {1024, 65535}, 1023: {1024, 65535}, 1024: {1025, 65535}, 33279: {33280, 65535}, 33281: {1024, 33280},
	} {
		if got := portsBeside(port); got != want {
			t.Errorf("portsBeside(%d) = %v, want %v", port, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	longest := namesOf(1<<24 - 1)
	for _, name := range []string{longest.masq, longest.fwd} {
		if len(name) > 28 || !isOurChain(name) || isOurTable(name) {
			t.Errorf("chain %q: %d characters, ours %v", name, len(name), isOurChain(name))
		}
	}
	for name, want := range map[string]bool{
		"OVERLAYD-1-FWD": true, "OVERLAYD-01-FWD": false, "OVERLAYD-16777216-FWD": false, "OVERLAYD--FWD": false,
		"OVERLAYD-1-FWDX": false, "OVERLAYD-1-X-FWD": false, "OVERLAYD-1": false, "FLANNEL-FWD": false, "overlayd-1-FWD": false,
	} {
		if isOurChain(name) != want {
			t.Errorf("isOurChain(%q) = %v", name, !want)
		}
	}
	for name, want := range map[string]bool{
		"overlayd-5": false, "OVERLAYD-6-POSTRTG": false, "FLANNEL-POSTRTG": true, "FLANNEL-FWD": true,
		"flannel-ipv4": true, "flannel-ipv6": true, "KUBE-POSTROUTING": false,
	} {
		if isFlannels(name) != want {
			t.Errorf("isFlannels(%q) = %v", name, !want)
		}
	}
}

// TestPrefixes: what a rule is about can be read from its expressions.
func TestPrefixes(t *testing.T) {
	c := Config{Port: testVXLANPort, Masquerade: true, Forward: true, RandomFully: true}
	for _, s := range build(c, wanted()) {
		for _, r := range append(s.masq, s.forward...) {
			exprs, err := expressions(s.family, r, true)
			if err != nil {
				t.Fatal(err)
			}
			var parsed nft.Rule
			for _, b := range exprs {
				x, err := nft.ParseExpr(b)
				if err != nil {
					t.Fatalf("rule %q: %v", specification(r), err)
				}
				parsed.Exprs = append(parsed.Exprs, x)
			}
			var want []string
			for _, m := range []match{r.src, r.dst} {
				if m.prefix.IsValid() {
					want = append(want, m.prefix.String())
				}
			}
			var got []string
			for _, p := range parsed.Prefixes(s.family) {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rule %q (-want +got):\n%s", specification(r), diff)
			}
		}
	}
}
