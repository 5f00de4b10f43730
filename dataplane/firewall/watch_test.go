package firewall

import (
	"context"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// start watches the packet filter of a host with flannel.1, until the test ends.
func start(t *testing.T, c Config, prepare string) (*netnstest.NS, *Watch, *netnstest.Log) {
	t.Helper()
	ns := netnstest.New(t)
	for _, name := range []string{"flannel.1", "eth0"} {
		ns.Run("ip", "link", "add", name, "type", "bridge")
	}
	ns.Run("sh", "-ec", prepare)
	var log netnstest.Log
	c.Log, c.VNI = slog.New(slog.NewTextHandler(&log, nil)), 1
	var w *Watch
	ns.Must(func() (err error) {
		if w, err = Open(c); err != nil {
			return err
		}
		_, err = w.Sync(t.Context(), dataplane.Wanted{
			Networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00::/48")},
			Subnets:  []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")},
			Peers:    []dataplane.Peer{{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr(nodeIP)}}},
		})
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ns.Do(func() error { return w.Run(ctx, func() {}) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns, w, &log
}

func config() Config {
	return Config{Port: tunnelPort, Device: "eth0", Locals: []netip.Addr{netip.MustParseAddr(hostIP)}, Forward: true}
}

// promised is how soon a chain that drops is reported. Tests on a busy machine have more time.
const promised = 2 * time.Second

// TestWatchReports: a chain that appears is reported, with what to do; when it is gone, that is said, and each is one line.
func TestWatchReports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, do, undo, id, text, fix string }{
		{"inet", "nft add table inet fw; nft add chain inet fw c '{ type filter hook forward priority 0; policy drop; }'", "nft delete table inet fw", dataplane.WarnForward,
			"drops what this host forwards for the overlay network 10.5.0.0/16, fd00::/48: inet fw c (policy drop)",
			"nft insert rule inet fw c ip saddr 10.5.0.0/16 accept; nft insert rule inet fw c ip daddr 10.5.0.0/16 accept; nft insert rule inet fw c ip6 saddr fd00::/48 accept"},
		{"ip", "nft add table ip fw; nft add chain ip fw c '{ type filter hook forward priority 0; policy drop; }'",
			"nft insert rule ip fw c ip saddr 10.5.0.0/16 accept; nft insert rule ip fw c ip daddr 10.5.0.0/16 accept", dataplane.WarnForward, "ip fw c (policy drop)", "nft insert rule ip fw c"},
		{"ip6", "nft add table ip6 fw; nft add chain ip6 fw c '{ type filter hook forward priority 0; policy drop; }'", "nft flush ruleset", dataplane.WarnForward,
			"overlay network fd00::/48", "nft insert rule ip6 fw c ip6 saddr fd00::/48 accept"},
		{"iptables-nft", "iptables -P FORWARD DROP", "iptables -P FORWARD ACCEPT", dataplane.WarnForward, "ip filter FORWARD", "iptables -I FORWARD -s 10.5.0.0/16 -j ACCEPT"},
		{"iptables-legacy", "iptables-legacy -A FORWARD -d 10.0.0.0/8 -j DROP", "iptables-legacy -F FORWARD", dataplane.WarnForward, "iptables-legacy -t filter FORWARD",
			"iptables-legacy -I FORWARD -d 10.5.0.0/16 -j ACCEPT"},
		{"port in", "nft add table inet fw; nft add chain inet fw c '{ type filter hook input priority 0; }'; nft add rule inet fw c udp dport 8472 drop", "nft delete table inet fw",
			dataplane.WarnPort, "that any peer sends to this host, UDP port 8472: inet fw c (rule 2 of chain c)", "nft insert rule inet fw c udp dport 8472 accept"},
		{"port out", "iptables -A OUTPUT -p udp --dport 8472 -d 192.0.2.3 -j DROP", "iptables -F OUTPUT", dataplane.WarnPort,
			"that this host sends to 192.0.2.3, UDP port 8472: ip filter OUTPUT", "iptables -I OUTPUT -p udp --dport 8472 -j ACCEPT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, w, log := start(t, config(), "true")
			ns.Run("sh", "-ec", c.do)
			began := time.Now()
			await(t, "reported", func() bool { return len(w.Status().Warnings) > 0 })
			t.Logf("reported after %v", time.Since(began).Round(time.Millisecond))
			warnings := w.Status().Warnings
			if g := warnings[0]; len(warnings) != 1 || g.ID != c.id || !strings.Contains(g.Text, c.text) || !strings.Contains(g.Fix, c.fix) || g.Since.Before(began.Add(-time.Minute)) {
				t.Errorf("got %+v", warnings)
			}
			ns.Run("sh", "-ec", c.undo)
			await(t, "over", func() bool { return len(w.Status().Warnings) == 0 })
			if a, b := log.Count("level=WARN"), log.Count("resolved: "); a != 1 || b != 1 {
				t.Errorf("%d and %d lines:\n%s", a, b, log)
			}
		})
	}
}

// await waits three times as long as promised, for a machine on which other tests run.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * promised); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %s in time", what)
		}
	}
}

// TestWatchAtStart: what drops when the daemon starts is reported too, without a notice of the kernel, and what is harmless is not.
func TestWatchAtStart(t *testing.T) {
	t.Parallel()
	ns, w, log := start(t, config(), `nft add table inet fw
nft add chain inet fw forwarding '{ type filter hook forward priority 0; policy drop; }'
nft add chain inet fw in '{ type filter hook input priority 0; policy drop; }'
nft add rule inet fw in udp dport 8472 accept
iptables -P FORWARD DROP; iptables -A FORWARD -s 10.5.0.0/16 -j ACCEPT; iptables -A FORWARD -d 10.5.0.0/16 -j ACCEPT`)
	await(t, "reported", func() bool { return len(w.Status().Warnings) == 1 })
	if log.Count("inet fw forwarding ip saddr 10.5.0.0/16 accept") != 1 || log.Count("inet fw forwarding ip6 daddr fd00::/48 accept") != 1 {
		t.Errorf("the log is\n%s", log)
	}
	if log.Count("fw in") > 0 || log.Count("FORWARD") > 0 {
		t.Errorf("the log names chains that are no trouble:\n%s", log)
	}
	ns.Run("nft", "flush", "ruleset")
	await(t, "over", func() bool { return len(w.Status().Warnings) == 0 })
}

// TestWatchIgnoresStorms: a chain that comes and goes at once is not reported, and neither is each of a hundred changes.
func TestWatchIgnoresStorms(t *testing.T) {
	t.Parallel()
	ns, w, log := start(t, config(), "true")
	for i := range 20 { // by a name of its own: a chain that is made again within a look seems to have stayed
		ns.Run("sh", "-ec", "nft add table inet fw; nft add chain inet fw c"+strconv.Itoa(i)+" '{ type filter hook forward priority 0; policy drop; }'; nft delete table inet fw")
	}
	ns.Run("sh", "-ec", "nft add table inet fw; nft add chain inet fw c '{ type filter hook forward priority 0; policy drop; }'")
	await(t, "reported", func() bool { return len(w.Status().Warnings) == 1 })
	if n := log.Count("level=WARN"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log)
	}
}

// TestWatchWithoutNotices: without the kernel's notices a chain is found as well.
func TestWatchWithoutNotices(t *testing.T) {
	t.Parallel()
	c := config()
	c.Deaf = true
	ns, w, _ := start(t, c, "true")
	ns.Run("sh", "-ec", "nft add table inet fw; nft add chain inet fw c '{ type filter hook forward priority 0; policy drop; }'")
	await(t, "reported", func() bool { return len(w.Status().Warnings) == 1 })
}

// TestWatchNothing: a network that is not forwarded here, and has no tunnel, has no packets that could be dropped.
func TestWatchNothing(t *testing.T) {
	t.Parallel()
	w := &Watch{cfg: Config{}}
	if packets := w.packetsOf(dataplane.Wanted{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}}); len(packets) > 0 {
		t.Errorf("got %+v", packets)
	}
}

// TestConcerns: what guards write, of which a daemon may have many, is no reason to look.
func TestConcerns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  uint16
		table string
		want  bool
	}{
		{unix.NFT_MSG_NEWRULE, "fw", true}, {unix.NFT_MSG_DELTABLE, "fw", true}, {unix.NFT_MSG_NEWSETELEM, "fw", true},
		{unix.NFT_MSG_NEWRULE, "overlayd-guard-7", false}, {unix.NFT_MSG_NEWRULE, "overlayd-guard-x", true}, {unix.NFT_MSG_NEWGEN, "fw", false},
	} {
		name := append([]byte(c.table), 0)
		body := append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0, byte(4 + len(name)), 0, unix.NFTA_TABLE_NAME, 0}, name...)
		var w Watch
		if got := w.concerns(unix.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | c.kind}, body); got != c.want || w.noticed.Load() != c.want {
			t.Errorf("message %d about %s: %v, want %v", c.kind, c.table, got, c.want)
		}
	}
}
