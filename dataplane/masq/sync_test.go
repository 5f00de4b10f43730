package masq

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

const goldenNFT = `table ip overlayd-7 {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		udp dport 8472 fib saddr type local return comment "overlayd masq"
		meta mark & 0x00004000 == 0x00004000 return comment "overlayd masq"
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return comment "overlayd masq"
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return comment "overlayd masq"
		ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return comment "overlayd masq"
		meta l4proto udp ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade to :8473-65535 fully-random comment "overlayd masq"
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random comment "overlayd masq"
		meta l4proto udp ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade to :8473-65535 fully-random comment "overlayd masq"
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random comment "overlayd masq"
	}
}
`

func goldenNFT6() string {
	return strings.NewReplacer("ip ", "ip6 ", testSubnet, testSubnet6, testNetwork, testNetwork6, "224.0.0.0/4", "ff00::/8").Replace(goldenNFT)
}

// goldenIptables is what iptables-save says of our chains.
func goldenIptables(masq string) string {
	text := ":OVERLAYD-7-FWD -\n-A FORWARD -m comment --comment \"overlayd forward\" -j OVERLAYD-7-FWD" + strings.ReplaceAll(goldenForward("10.244.0.0/16"), "\n", "\n-A OVERLAYD-7-FWD ")
	if masq != "" {
		text += "\n:OVERLAYD-7-POSTRTG -\n-A POSTROUTING -m comment --comment \"overlayd masq\" -j OVERLAYD-7-POSTRTG" + strings.ReplaceAll(masq, "\n", "\n-A OVERLAYD-7-POSTRTG ")
	}
	return byChain(strings.Split(text, "\n"))
}

func goldenIptables6(masq string) string {
	return strings.NewReplacer(testSubnet, testSubnet6, testNetwork, testNetwork6, "224.0.0.0/4", "ff00::/8").Replace(goldenIptables(masq))
}

// dropForward sets the policies that Docker sets, in the tables of iptables-nft, in
// the legacy ones if legacy is true.
func (h *host) dropForward(legacy bool) {
	for _, f := range []family{ipv4, ipv6} {
		h.Run(h.real["xtables-nft-multi"], commandOf(f), "-P", "FORWARD", "DROP")
		if legacy {
			h.Run(h.real["xtables-legacy-multi"], commandOf(f), "-P", "FORWARD", "DROP")
		}
	}
}

func TestSync(t *testing.T) {
	for _, c := range []struct {
		variant variant
		drop    bool
		want    string
	}{
		{nftVariant, false, goldenNFT + goldenNFT6()},
		{nftVariant, true, goldenNFT + goldenNFT6() + goldenIptables("") + goldenIptables("") + goldenIptables6("") + goldenIptables6("")},
		{iptNFT, false, goldenIptables(goldenIPv4) + goldenIptables6(goldenIPv4)},
		{iptNFT, true, goldenIptables(goldenIPv4) + goldenIptables("") + goldenIptables6(goldenIPv4) + goldenIptables6("")},
		{iptLegacy, false, goldenIptables(goldenIPv4) + goldenIptables6(goldenIPv4)},
		{iptLegacy, true, goldenIptables("") + goldenIptables(goldenIPv4) + goldenIptables6("") + goldenIptables6(goldenIPv4)},
	} {
		name := string(c.variant)
		if c.drop {
			name += ", FORWARD DROP in all tables"
		}
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.variant)
			if c.drop {
				h.dropForward(true)
			}
			r := h.sync(h.config(), wanted())
			if diff := cmp.Diff(c.want, h.ours()); diff != "" {
				t.Fatalf("rules (-want +got):\n%s", diff)
			}
			first := h.executed()
			h.Must(func() error { _, err := r.Sync(context.Background(), wanted()); return err })
			if n := h.executed() - first; n != 0 {
				t.Errorf("a second Sync executed %d processes", n)
			}
			t.Logf("the first Sync executed %d processes", first)
			h.sync(h.config(), wanted()) // as after a restart
			if diff := cmp.Diff(c.want, h.ours()); diff != "" {
				t.Errorf("rules after a restart (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSyncMixed: rules with interfaces read back as they were written, so that a restart writes nothing.
func TestSyncMixed(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(v == iptLegacy)
			h.sync(h.config(), wantedMixed())
			before := h.ours()
			if v == nftVariant {
				for _, part := range []string{`ip saddr 10.244.1.0/24 oifname "flannel.7" return`, `oifname "flannel-v6.7" masquerade`} {
					if !strings.Contains(before, part) {
						t.Errorf("no %s in\n%s", part, before)
					}
				}
			} else if want := strings.ReplaceAll(goldenMixed, "\n", "\n-A OVERLAYD-7-POSTRTG "); !strings.Contains(before, strings.TrimSpace(want)) {
				t.Errorf("rules are\n%s\nwant\n%s", before, want)
			}
			h.sync(h.config(), wantedMixed()) // as after a restart
			if diff := cmp.Diff(before, h.ours()); diff != "" {
				t.Errorf("rules after a restart (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSyncOtherNetwork: a new lease or network replaces the rules of the old.
func TestSyncOtherNetwork(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(true)
			r := h.sync(h.config(), wanted())
			before := h.ours()
			other := func(s string) string {
				return strings.NewReplacer("10.244.1.0", "10.99.3.0", "10.244.0.0", "10.99.0.0").Replace(s)
			}
			w := wanted()
			w.Networks, w.Subnets = prefixes(other(testNetwork), testNetwork6), prefixes(other(testSubnet), testSubnet6)
			h.Must(func() error { _, err := r.Sync(context.Background(), w); return err })
			if diff := cmp.Diff(other(before), h.ours()); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			h.Must(func() error { _, err := r.Sync(context.Background(), dataplane.Wanted{}); return err })
			if got := h.ours(); got != "" {
				t.Errorf("without a network there is left\n%s", got)
			}
		})
	}
}

// TestSwitchMode: whatever wrote the rules before, only those of now are left.
func TestSwitchMode(t *testing.T) {
	variants := []variant{nftVariant, iptNFT, iptLegacy}
	want := map[variant]string{}
	for _, v := range variants {
		h := newHost(t, v)
		h.dropForward(true)
		h.sync(h.config(), wanted())
		want[v] = h.ours()
	}
	for _, from := range variants {
		for _, to := range variants {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				h := newHost(t, from)
				h.dropForward(true)
				h.sync(h.config(), wanted())
				h.become(to)
				h.sync(h.config(), wanted())
				if diff := cmp.Diff(want[to], h.ours()); diff != "" {
					t.Errorf("rules (-want +got):\n%s", diff)
				}
				c := h.config()
				c.Masquerade, c.Forward = false, false
				h.sync(c, wanted())
				if got := h.ours(); got != "" {
					t.Errorf("with all rules turned off there is left\n%s", got)
				}
			})
		}
	}
}

// TestTwoNetworks: networks on one host do not touch each other's rules.
func TestTwoNetworks(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(true)
			h.sync(h.config(), wanted())
			first := h.filter("overlayd-7 ", "OVERLAYD-7-")
			c := h.config()
			c.VNI = 70
			w := dataplane.Wanted{Networks: prefixes("10.99.0.0/16"), Subnets: prefixes("10.99.1.0/24")}
			second := h.sync(c, w)
			if diff := cmp.Diff(first, h.filter("overlayd-7 ", "OVERLAYD-7-")); diff != "" {
				t.Errorf("the first network's rules changed (-before +after):\n%s", diff)
			}
			if got := h.filter("overlayd-70 ", "OVERLAYD-70-"); !strings.Contains(got, "10.99.0.0/16") || strings.Contains(got, "10.244") {
				t.Errorf("the second network's rules are\n%s", got)
			}
			h.Must(func() error { _, err := second.Sync(context.Background(), dataplane.Wanted{}); return err })
			if diff := cmp.Diff(first, h.ours()); diff != "" {
				t.Errorf("after the second network's end (-first +all):\n%s", diff)
			}
		})
	}
}
