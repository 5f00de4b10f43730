package masq

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// flannelIptables is what flanneld leaves in iptables mode (facts of flannel v0.28.9).
const flannelIptables = `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

// flannelNFT is what it leaves in nftables mode.
const flannelNFT = `table ip flannel-ipv4 { comment "rules for flannel-ipv4"
	chain postrtg { comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
	}
	chain forward { comment "chain to accept flannel traffic"
		type filter hook forward priority filter; policy accept;
		ip saddr 10.244.0.0/16 accept
		ip daddr 10.244.0.0/16 accept
	}
}
`

func toIPv6(s string) string {
	return strings.NewReplacer("table ip ", "table ip6 ", "ip saddr", "ip6 saddr", "ip daddr", "ip6 daddr", "flannel-ipv4", "flannel-ipv6",
		"10.244.1.0/24", testSubnet6, testNetwork, testNetwork6, "10.99.0.0/16", "fd00:99::/48", "10.99.1.0/24", "fd00:99:0:1::/64", "224.0.0.0/4", "ff00::/8").Replace(s)
}

// feed gives text to the standard input of a command on the host.
func (h *host) feed(text, name string, args ...string) {
	h.tb.Helper()
	h.Must(func() error {
		_, err := run(context.Background(), name, text, args...)
		return err
	})
}

// flannel leaves flannel's rules in both families, in iptables of a variant or in nftables.
func (h *host) flannel(v variant, change func(string) string) {
	h.tb.Helper()
	multi := map[variant]string{iptNFT: h.real["xtables-nft-multi"], iptLegacy: h.real["xtables-legacy-multi"]}[v]
	if multi == "" {
		h.feed(change(flannelNFT), h.real["nft"], "-f", "-")
		h.feed(toIPv6(change(flannelNFT)), h.real["nft"], "-f", "-")
		return
	}
	h.feed(change(flannelIptables), multi, "iptables-restore", "--noflush")
	h.feed(toIPv6(change(flannelIptables)), multi, "ip6tables-restore", "--noflush")
}

func same(s string) string { return s }

// TestTakeover: flannel's rules go wherever flanneld wrote them, those for another network stay.
func TestTakeover(t *testing.T) {
	other := func(s string) string { return strings.ReplaceAll(s, "10.244.", "10.99.") }
	mixed := strings.NewReplacer("-A FLANNEL-POSTRTG -s 10.244.1.0", "-A FLANNEL-POSTRTG -s 10.99.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE\n-A FLANNEL-POSTRTG -s 10.244.1.0",
		"-A FLANNEL-FWD -s", "-A FLANNEL-FWD -s 10.99.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -s",
		"meta mark", "ip saddr 10.99.0.0/16 accept\n\t\tmeta mark", "ip saddr 10.244.0.0/16 accept", "ip saddr 10.99.0.0/16 accept").Replace
	for _, from := range []variant{nftVariant, iptNFT, iptLegacy} {
		for _, to := range []variant{nftVariant, noIptables, iptNFT, iptLegacy} {
			if from == iptLegacy && to == noIptables {
				continue // nobody can remove them
			}
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				h := newHost(t, to)
				h.flannel(from, same)
				h.sync(h.config(), wanted())
				if got := h.filter("flannel-", "FLANNEL-"); got != "" {
					t.Errorf("of flannel's rules there is left\n%s", got)
				}
				h = newHost(t, to)
				h.flannel(from, other)
				before := h.filter("flannel-", "FLANNEL-")
				h.sync(h.config(), wanted())
				if diff := cmp.Diff(before, h.filter("flannel-", "FLANNEL-")); diff != "" || before == "" {
					t.Errorf("another flanneld's rules changed (-before +after):\n%s", diff)
				}

				h = newHost(t, to)
				h.flannel(from, mixed)
				h.sync(h.config(), wanted())
				got := h.filter("flannel-", "FLANNEL-")
				if !strings.Contains(got, "10.99.0.0") || !strings.Contains(got, "fd00:99::") || strings.Contains(got, "244") {
					t.Errorf("of two flanneld's rules there is left\n%s", got)
				}
			})
		}
	}
}

// TestFlannelNetworks: what flannel's rules name is found in whatever tables they are, and no longer once
// overlayd serves the network.
func TestFlannelNetworks(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			find := func() (found []netip.Prefix) {
				h.Must(func() (err error) { found, err = FlannelNetworks(); return err })
				return found
			}
			h.ipt("iptables", "-A", "FORWARD", "-s", "10.77.0.0/16", "-j", "ACCEPT")
			h.nft("add table ip others")
			if got := find(); len(got) > 0 {
				t.Errorf("without flannel: %v", got)
			}
			h.flannel(v, same)
			got := find()
			for _, want := range prefixes(testNetwork, testNetwork6, testSubnet, testSubnet6) {
				if !slices.Contains(got, want) {
					t.Errorf("%s is not among %v", want, got)
				}
			}
			if slices.Contains(got, netip.MustParsePrefix("10.77.0.0/16")) {
				t.Errorf("a rule of others is taken for flannel's: %v", got)
			}
			h.sync(h.config(), wanted())
			if got := find(); len(got) > 0 {
				t.Errorf("of a network that overlayd serves: %v", got)
			}
		})
	}
}

// TestCleanup: nothing of ours is left, and everything else as it was.
func TestCleanup(t *testing.T) {
	for _, v := range []variant{nftVariant, noIptables, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(v != noIptables)
			h.flannel(v, func(s string) string { return strings.ReplaceAll(s, "10.244.", "10.99.") })
			h.ipt("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "172.17.0.0/16", "-j", "MASQUERADE")
			h.nft("add table ip overlayd-guard")
			before := h.ruleset()
			h.sync(h.config(), wanted())
			first := h.ours()
			c := h.config()
			c.VNI = 70
			w := wanted()
			w.Networks, w.Subnets = prefixes("10.88.0.0/16"), prefixes("10.88.1.0/24")
			h.sync(c, w)

			clean := func(vnis ...uint32) (removed []string) {
				h.Must(func() (err error) { removed, err = Cleanup(context.Background(), vnis...); return err })
				return removed
			}
			if len(clean(70)) == 0 || h.filter("overlayd-7", "OVERLAYD-") == "" {
				t.Error("cleaning up one network removed nothing or too much")
			}
			if got := h.ours(); got != first {
				t.Errorf("after cleaning up another network the rules are\n%s\nwant\n%s", got, first)
			}
			t.Log(clean())
			if diff := cmp.Diff(before, h.ruleset()); diff != "" {
				t.Errorf("ruleset (-before +after):\n%s", diff)
			}
			if again := clean(); len(again) != 0 {
				t.Errorf("a second call removed %v", again)
			}
		})
	}
}

// TestMissingBinary: without iptables an error says what to do, but only if there is something to write.
func TestMissingBinary(t *testing.T) {
	h := newHost(t, nftVariant)
	t.Setenv("PATH", t.TempDir())
	c := h.config()
	c.NFTables = false
	r := h.open(c)
	err := h.Do(func() error { _, err := r.Sync(context.Background(), wanted()); return err })
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "EnableNFTables") {
		t.Errorf("Sync without iptables: %v", err)
	}
	c.Masquerade, c.Forward = false, false
	h.sync(c, wanted())
}

// TestLegacyWithoutBinary: what only iptables-legacy could do is told once.
func TestLegacyWithoutBinary(t *testing.T) {
	h := newHost(t, nftVariant)
	h.dropForward(true)
	t.Setenv("PATH", t.TempDir())
	var log strings.Builder
	c := h.config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := h.sync(c, wanted())
	h.Must(func() error { r.repair(context.Background()); r.repair(context.Background()); return nil })
	if n := strings.Count(log.String(), "ip6tables-legacy -P FORWARD ACCEPT"); n != 1 {
		t.Errorf("the log has the remedy %d times:\n%s", n, log.String())
	}
}

// TestLegacyFails: an iptables-legacy that cannot do it keeps nothing else from working.
func TestLegacyFails(t *testing.T) {
	h := newHost(t, nftVariant)
	h.dropForward(true)
	for _, f := range []family{ipv4, ipv6} {
		script := "#!/bin/sh\necho Permission denied >&2\nexit 1\n"
		if err := os.WriteFile(filepath.Join(filepath.Dir(h.log), commandOf(f)+"-legacy-save"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	c := h.config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := h.sync(c, wanted())
	h.Must(func() error { r.repair(context.Background()); return nil })
	if n := strings.Count(log.String(), "Permission denied"); n != 2 {
		t.Errorf("the log tells of it %d times, want once per family:\n%s", n, log.String())
	}
	if got := h.ours(); !strings.Contains(got, goldenNFT) {
		t.Errorf("the rules are\n%s", got)
	}
}

func TestOpenInvalid(t *testing.T) {
	for _, c := range []Config{{VNI: 1}, {VNI: 1 << 24, Port: 1}, {VNI: 1, Port: 1, Resync: -1}} {
		if _, err := Open(c); err == nil {
			t.Errorf("Open(%+v) returned no error", c)
		}
	}
}

// TestRestoreRefused: what iptables says is in the error.
func TestRestoreRefused(t *testing.T) {
	h := newHost(t, iptNFT)
	script := "#!/bin/sh\necho 'no chain/target/match by that name' >&2\nexit 2\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(h.log), "iptables-restore"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := h.open(h.config())
	err := h.Do(func() error { _, err := r.Sync(context.Background(), wanted()); return err })
	if err == nil || !strings.Contains(err.Error(), "no chain/target/match") {
		t.Errorf("Sync: %v", err)
	}
}
