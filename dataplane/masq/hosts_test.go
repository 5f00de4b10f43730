package masq

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// variant is what a host writes its rules with.
type variant string

const (
	nftVariant    variant = "nft"             // our nftables mode; iptables is that of nftables
	iptNFT        variant = "iptables-nft"    // iptables mode
	iptLegacy     variant = "iptables-legacy" // iptables mode
	noIptables    variant = "nft, no iptables"
	patience              = 10 * time.Second // it is not a measure: the machine may be busy; cmd/overlayd's TestDrift has that
	testNetwork           = "10.244.0.0/16"
	testNetwork6          = "fd00:244::/48"
	testSubnet            = "10.244.1.0/24"
	testSubnet6           = "fd00:244:0:1::/64"
	testVNI               = 7
	testVXLANPort         = 8472
)

func (v variant) isNFT() bool { return v == nftVariant || v == noIptables }

// host is a network namespace with the tools of a variant.
type host struct {
	*netnstest.NS
	tb      testing.TB
	variant variant
	real    map[string]string // paths of the tools that tests use themselves
	log     string            // one line for each process that the package executed
}

// newHost makes a host, and PATH for the whole test a directory of that variant's
// iptables, which write down that they were executed.
func newHost(t *testing.T, v variant) *host {
	h := &host{NS: netnstest.New(t), tb: t, real: map[string]string{}}
	for _, name := range []string{"nft", "xtables-nft-multi", "xtables-legacy-multi"} {
		path, err := exec.LookPath(filepath.Join("/usr/sbin", name))
		if err != nil {
			t.Fatalf("this test needs nftables and iptables: %v", err)
		}
		h.real[name] = path
	}
	dir := t.TempDir()
	h.log = filepath.Join(dir, "log")
	t.Setenv("PATH", dir)
	h.become(v)
	return h
}

// become changes the variant of the host.
func (h *host) become(v variant) {
	h.variant = v
	multi := map[variant]string{nftVariant: "xtables-nft-multi", iptNFT: "xtables-nft-multi", iptLegacy: "xtables-legacy-multi"}
	for _, f := range []family{ipv4, ipv6} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if v != noIptables {
				h.shim(filepath.Dir(h.log), commandOf(f)+suffix, multi[v], commandOf(f)+suffix)
				h.shim(filepath.Dir(h.log), commandOf(f)+"-legacy"+suffix, "xtables-legacy-multi", commandOf(f)+suffix)
			}
		}
	}
}

func (h *host) shim(dir, name, multi, applet string) {
	script := fmt.Sprintf("#!/bin/sh\necho \"%s $*\" >>%s\nexec %s %s \"$@\"\n", name, h.log, h.real[multi], applet)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		h.tb.Fatal(err)
	}
}

// executed returns how many processes the package has executed.
func (h *host) executed() int {
	b, _ := os.ReadFile(h.log)
	return strings.Count(string(b), "\n")
}

func (h *host) nft(args ...string) string { return h.Run(h.real["nft"], args...) }

// ipt runs an iptables of the variant, the legacy one if the command says so: "iptables-legacy".
func (h *host) ipt(command string, args ...string) string {
	h.tb.Helper()
	multi := "xtables-nft-multi"
	if h.variant == iptLegacy || strings.Contains(command, "-legacy") {
		multi = "xtables-legacy-multi"
	}
	return h.Run(h.real[multi], append([]string{strings.Replace(command, "-legacy", "", 1)}, args...)...)
}

// ruleset is all that there is, without counters and handles.
func (h *host) ruleset() string {
	var lines []string
	text := h.nft("-s", "list", "ruleset")
	for _, f := range []string{"ip", "ip6"} {
		for _, table := range strings.Fields(h.Run("/bin/cat", "/proc/thread-self/net/"+f+"_tables_names")) {
			text += "\n" + h.ipt(f+"tables-legacy-save", "-t", table)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ":") {
			line, _, _ = strings.Cut(line, "[")
		}
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimRight(line, " \n"))
		}
	}
	return strings.Join(lines, "\n")
}

func (h *host) config() Config {
	return Config{
		Log: slog.New(slog.NewTextHandler(testWriter{h.tb}, nil)), VNI: testVNI, Port: testVXLANPort, NFTables: h.variant.isNFT(),
		Masquerade: true, Forward: true, RandomFully: true, Resync: 300 * time.Millisecond,
	}
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.tb.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}

func wanted() dataplane.Wanted {
	return dataplane.Wanted{Networks: prefixes(testNetwork, testNetwork6), Subnets: prefixes(testSubnet, testSubnet6)}
}

// wantedMixed is wanted in networks that hold addresses of the underlay.
func wantedMixed() dataplane.Wanted {
	w := wanted()
	w.Underlay = prefixes("10.244.9.0/24", "fd00:244:0:9::1/128")
	return w
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// open opens rules on the host.
func (h *host) open(c Config) *Rules {
	h.tb.Helper()
	var r *Rules
	h.Must(func() (err error) { r, err = Open(c); return err })
	h.tb.Cleanup(func() { r.Close() })
	return r
}

// sync opens rules and syncs them.
func (h *host) sync(c Config, w dataplane.Wanted) *Rules {
	h.tb.Helper()
	r := h.open(c)
	h.Must(func() error { _, err := r.Sync(context.Background(), w); return err })
	return r
}

// run runs rules until the test ends or the returned function is called.
func (h *host) run(r *Rules) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Do(func() error { return r.Run(ctx, func() {}) }) }()
	stopped := false
	stop = func() {
		if cancel(); stopped {
			return
		}
		stopped = true
		if err := <-done; err != nil {
			h.tb.Errorf("Run: %v", err)
		}
	}
	h.tb.Cleanup(stop)
	return stop
}

// eventually waits until our rules are as wanted.
func (h *host) eventually(what, want string, within time.Duration) {
	h.tb.Helper()
	start, got := time.Now(), ""
	for time.Since(start) < within {
		if got = h.ours(); got == want {
			h.tb.Logf("%s: restored in %v", what, time.Since(start).Round(time.Millisecond))
			return
		}
	}
	h.tb.Fatalf("%s: after %v the rules are\n%s\nwant\n%s", what, within, got, want)
}

// legacyWarning is what iptables-save writes to the standard error, in the midst of a long text.
var legacyWarning = regexp.MustCompile(`# Warning: [^\n]*\n`)

// ours is what there is of all our networks, and what leads there.
func (h *host) ours() string { return h.filter("overlayd-", "OVERLAYD-") }

// filter is the tables and lines of the ruleset with one of the words in their
// names, in an order that does not depend on when they were made.
func (h *host) filter(table, chain string) string {
	var tables []string
	for block := range strings.SplitSeq("\n"+h.nft("-s", "list", "ruleset"), "\ntable ") {
		if head, _, _ := strings.Cut(block, "{"); strings.Contains(head, table) {
			block, _, _ = strings.Cut(block, "\n#") // nft's warning before a table of iptables
			tables = append(tables, "table "+strings.TrimSpace(block)+"\n")
		}
	}
	slices.Sort(tables)
	text := strings.Join(tables, "")
	for _, f := range []family{ipv4, ipv6} {
		saves := []string{h.Run(h.real["xtables-nft-multi"], commandOf(f)+"-save")}
		if b := h.Run("/bin/cat", "/proc/thread-self/net/"+f.String()+"_tables_names"); b != "" {
			saves = append(saves, h.Run(h.real["xtables-legacy-multi"], commandOf(f)+"-save"))
		}
		for _, save := range saves {
			var lines []string
			for line := range strings.Lines(legacyWarning.ReplaceAllString(save, "")) {
				if strings.Contains(line, chain) && !strings.HasPrefix(line, "#") {
					line, _, _ = strings.Cut(line, " [")
					lines = append(lines, strings.TrimSpace(line))
				}
			}
			text += byChain(lines)
		}
	}
	return text
}

// byChain sorts lines of iptables-save by chain, the rules of a chain left in order.
func byChain(lines []string) (text string) {
	key := func(line string) string {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "-A "), ":")
		chain, _, _ := strings.Cut(line, " ")
		return chain
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(key(a), key(b)) })
	for _, line := range lines {
		text += line + "\n"
	}
	return text
}
