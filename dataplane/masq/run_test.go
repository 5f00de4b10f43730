package masq

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// idle is how long TestIdle watches for processes: 60s is what is promised.
var idle = flag.Duration("idle", 2*time.Second, "how long no process may be executed")

// nftSabotage is what is done by nft to the own tables; the mark rule has handle 4.
func nftSabotage() map[string][]string {
	return map[string][]string{
		"table deleted":      {"delete table ip overlayd-7"},
		"chain flushed":      {"flush chain ip overlayd-7 postrouting"},
		"one rule deleted":   {"delete rule ip overlayd-7 postrouting handle 4"},
		"a rule added":       {"add rule ip overlayd-7 postrouting ip saddr 192.0.2.1 masquerade"},
		"comment removed":    {"replace rule ip overlayd-7 postrouting handle 4 meta mark & 0x4000 == 0x4000 return"},
		"a rule in front":    {"insert rule ip6 overlayd-7 postrouting return"},
		"another order":      {"delete rule ip overlayd-7 postrouting handle 4", "add rule ip overlayd-7 postrouting meta mark & 0x4000 == 0x4000 return"},
		"a chain added":      {"add chain ip overlayd-7 extra { type nat hook postrouting priority 50; }"},
		"policy changed":     {"add chain ip overlayd-7 postrouting { policy drop; }"},
		"made dormant":       {"add table ip overlayd-7 { flags dormant; }"},
		"everything flushed": {"flush ruleset"},
	}
}

// iptSabotage is what is done by iptables, in table nat and in FORWARD.
func iptSabotage(masq bool) map[string][]string {
	m := map[string][]string{
		"jump deleted":         {"-D FORWARD 1"},
		"jump twice":           {"-I FORWARD -j OVERLAYD-7-FWD"},
		"accept deleted":       {"-D OVERLAYD-7-FWD 1"},
		"FORWARD flushed":      {"-F FORWARD"},
		"an extra rule":        {"-I OVERLAYD-7-FWD -s 10.244.7.0/24 -j DROP"},
		"chain deleted":        {"-F FORWARD", "-F OVERLAYD-7-FWD", "-X OVERLAYD-7-FWD"},
		"jump made narrow":     {"-R FORWARD 1 -s 10.244.7.0/24 -j OVERLAYD-7-FWD"},
		"comment removed":      {"-R OVERLAYD-7-FWD 1 -s 10.244.0.0/16 -j ACCEPT"},
		"jump's comment gone":  {"-R FORWARD 1 -j OVERLAYD-7-FWD"},
		"accepts interchanged": {"-D OVERLAYD-7-FWD 1", "-A OVERLAYD-7-FWD -s 10.244.0.0/16 -j ACCEPT"},
	}
	if masq {
		m["nat rule deleted"] = []string{"-t nat -D OVERLAYD-7-POSTRTG 2"}
		m["nat rule changed"] = []string{"-t nat -R OVERLAYD-7-POSTRTG 3 -s 10.244.1.0/24 -d 10.244.0.0/17 -j RETURN"}
		m["nat flushed"] = []string{"-t nat -F"}
		m["nat jump deleted"] = []string{"-t nat -D POSTROUTING 1"}
	}
	return m
}

// TestRunRestores: what somebody changes comes back, in either family, and what is
// done to the rules is noticed each time.
func TestRunRestores(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(true)
			r := h.sync(h.config(), wanted())
			want := h.ours()
			h.run(r)
			if v == nftVariant {
				for what, commands := range nftSabotage() {
					h.feed(strings.Join(commands, "\n"), h.real["nft"], "-f", "-")
					if what == "everything flushed" { // and the base chain with it
						h.dropForward(false)
					}
					h.eventually(what, want, patience)
				}
			}
			for what, commands := range iptSabotage(v != nftVariant) {
				h.restore(commands)
				h.eventually("iptables: "+what, want, patience)
			}
		})
	}
}

// TestUndoneTwice: rules that somebody undoes after each write, and so read the same twice, are not taken for good.
func TestUndoneTwice(t *testing.T) {
	for _, v := range []variant{iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(true)
			dir, multi := filepath.Dir(h.log), map[variant]string{iptNFT: "xtables-nft-multi", iptLegacy: "xtables-legacy-multi"}[v]
			undo := fmt.Sprintf("#!/bin/sh -e\n%[1]s iptables-restore \"$@\"\nexec %[1]s iptables -F OVERLAYD-7-FWD\n", h.real[multi])
			if err := os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte(undo), 0o755); err != nil {
				t.Fatal(err)
			}
			h.Must(func() error {
				tool, err := findTool(t.Context(), ipv4, "iptables")
				if err != nil {
					return err
				}
				forward := []rule{{src: match{prefix: netip.MustParsePrefix(testNetwork)}, do: accept}, {dst: match{prefix: netip.MustParsePrefix(testNetwork)}, do: accept}}
				for i := range 4 {
					if wrote, err := tool.ensure(t.Context(), toolWant{names: namesOf(testVNI), forward: forward}); err != nil || !wrote {
						t.Errorf("try %d: wrote %t, %v", i, wrote, err)
					}
				}
				return nil
			})
		})
	}
}

// restore lets iptables of the variant execute commands at once, in both families.
func (h *host) restore(commands []string) {
	h.tb.Helper()
	table := filterTable
	for i, c := range commands {
		if rest, ok := strings.CutPrefix(c, "-t nat "); ok {
			table, commands[i] = natTable, rest
		}
	}
	text := restoreText(table, commands)
	multi := h.real["xtables-nft-multi"]
	if h.variant == iptLegacy {
		multi = h.real["xtables-legacy-multi"]
	}
	h.feed(text, multi, "iptables-restore", "--noflush", "--wait=5")
	h.feed(strings.NewReplacer(testNetwork, testNetwork6, testSubnet, testSubnet6, "10.244.7.0/24", "fd00:244:0:7::/64", "10.244.0.0/17", "fd00:244::/49").Replace(text),
		multi, "ip6tables-restore", "--noflush", "--wait=5")
}

// TestRunChainAppears: a host that gets a FORWARD chain later gets the accept rules
// in it, whoever makes it.
func TestRunChainAppears(t *testing.T) {
	for _, v := range []variant{nftVariant, noIptables, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			reference := newHost(t, v)
			legacy := v != noIptables
			reference.dropForward(legacy)
			reference.sync(reference.config(), wanted())
			want := reference.ours()

			h := newHost(t, v)
			h.run(h.sync(h.config(), wanted()))
			h.dropForward(legacy)
			h.eventually("FORWARD DROP appears", want, patience)
		})
	}
}

// TestIdle: nothing is executed while nobody changes what is ours, though others change what is theirs.
func TestIdle(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.dropForward(true)
			r := h.sync(h.config(), wanted())
			c := h.config()
			c.VNI = 70 // of a second daemon, set up for the same network even
			second := h.sync(c, wanted())
			h.Must(func() error { r.repair(context.Background()); return nil }) // looks at what the second wrote to the legacy tables
			want, before := h.ours(), h.executed()
			stop := h.run(r)
			h.run(second)
			for start := time.Now(); time.Since(start) < *idle; {
				h.Run(h.real["xtables-nft-multi"], "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.0/24", "-j", "ACCEPT")
				h.Run(h.real["xtables-nft-multi"], "iptables", "-A", "FORWARD", "-s", "192.0.2.0/24", "-j", "ACCEPT")
				time.Sleep(*idle / 20)
			}
			stop()
			if n := h.executed() - before; n != 0 {
				t.Errorf("%d processes were executed in %v", n, *idle)
			}
			if got := h.ours(); got != want {
				t.Errorf("the rules became\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestRunOverrun: more changes at once than the socket holds.
func TestRunOverrun(t *testing.T) {
	h := newHost(t, nftVariant)
	r := h.sync(h.config(), wanted())
	want := h.ours()
	h.run(r)
	var script strings.Builder
	script.WriteString("add table ip noise\n")
	for i := range 20000 {
		script.WriteString(fmt.Sprintf("add chain ip noise c%d\n", i))
	}
	script.WriteString("delete table ip overlayd-7\n")
	h.Must(func() error {
		_, err := run(context.Background(), h.real["nft"], script.String(), "-f", "-")
		return err
	})
	h.nft("delete", "table", "ip", "noise")
	h.eventually("overrun", want, 2*patience)
}

// TestRunIptablesBecomesAnother: the administrator has iptables write other tables from
// now on. The rules move there as soon as the first of them needs repair.
func TestRunIptablesBecomesAnother(t *testing.T) {
	for from, to := range map[variant]variant{iptNFT: iptLegacy, iptLegacy: iptNFT} {
		t.Run(string(from)+" to "+string(to), func(t *testing.T) {
			reference := newHost(t, to)
			reference.dropForward(true)
			reference.sync(reference.config(), wanted())
			want := reference.ours()

			h := newHost(t, from)
			h.dropForward(true)
			h.run(h.sync(h.config(), wanted()))
			for _, f := range []family{ipv4, ipv6} {
				h.ipt(commandOf(f), "-t", "nat", "-F", "OVERLAYD-7-POSTRTG")
			}
			h.become(to)
			for _, f := range []family{ipv4, ipv6} {
				h.Run(h.real["xtables-nft-multi"], commandOf(f), "-F", "FORWARD")
				h.Run(h.real["xtables-legacy-multi"], commandOf(f), "-F", "FORWARD")
			}
			h.eventually("iptables became "+string(to), want, 2*patience)
		})
	}
}

// TestSyncDoesNotWaitForRepair: while iptables waits, as for its lock, a Sync that wants
// nothing else goes on, and so does the rest of the dataplane.
func TestSyncDoesNotWaitForRepair(t *testing.T) {
	h := newHost(t, iptNFT)
	r := h.sync(h.config(), wanted())
	want := h.ours()
	h.run(r)
	lock := filepath.Join(t.TempDir(), "lock")
	if err := syscall.Mkfifo(lock, 0o600); err != nil {
		t.Fatal(err)
	}
	before := h.executed()
	save := filepath.Join(filepath.Dir(h.log), "iptables-save")
	script := fmt.Sprintf("#!/bin/sh\necho waits >>%s\nread go <%s\nexec %s iptables-save\n", h.log, lock, h.real["xtables-nft-multi"])
	if err := os.WriteFile(save, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h.ipt("iptables", "-t", "nat", "-F", "POSTROUTING")
	for deadline := time.Now().Add(patience); h.executed() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is repaired")
		}
	}
	start := time.Now()
	h.Must(func() error { _, err := r.Sync(t.Context(), wanted()); return err })
	if d := time.Since(start); d > time.Second {
		t.Errorf("Sync took %v", d)
	}
	os.Remove(save) // and not its content, which is being executed
	h.become(iptNFT)
	if err := os.WriteFile(lock, nil, 0); err != nil { // lets it go on
		t.Fatal(err)
	}
	h.eventually("iptables waited", want, patience)
}

// TestSyncLeavesFailureToRun: what could not be written is told by each Sync until Run
// has written it.
func TestSyncLeavesFailureToRun(t *testing.T) {
	h := newHost(t, iptNFT)
	reference := h.sync(h.config(), wanted())
	want := h.ours()
	h.Must(func() error { _, err := reference.Sync(t.Context(), dataplane.Wanted{}); return err })
	save := filepath.Join(filepath.Dir(h.log), "iptables-save")
	if err := os.WriteFile(save, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := h.config()
	c.Resync = time.Hour
	r := h.open(c)
	h.run(r)
	sync := func() error { return h.Do(func() error { _, err := r.Sync(t.Context(), wanted()); return err }) }
	for range 2 {
		if err := sync(); err == nil || !strings.Contains(err.Error(), "iptables-save") {
			t.Errorf("Sync: %v", err)
		}
	}
	h.become(iptNFT)
	for deadline := time.Now().Add(patience); sync() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(sync())
		}
	}
	if got := h.ours(); got != want {
		t.Errorf("the rules are\n%s\nwant\n%s", got, want)
	}
}

// TestRepairsAreCounted: what others change is counted by family and named in the log, what Sync
// writes is not.
func TestRepairsAreCounted(t *testing.T) {
	h := newHost(t, nftVariant)
	var log strings.Builder
	c := h.config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := h.sync(c, wanted())
	look := func() { h.Must(func() error { r.repair(context.Background()); return nil }) }
	look()
	if s := r.Status(); s.Name != "rules" || s.State != dataplane.StateOK || len(s.Objects) != 1 ||
		s.Objects[0] != (dataplane.ObjectStatus{Kind: kindRules, Wanted: 2, Have: 2}) || strings.Contains(log.String(), "repaired") {
		t.Errorf("before: %+v, log %s", s, log.String())
	}
	h.feed("flush chain ip overlayd-7 postrouting", h.real["nft"], "-f", "-")
	look()
	look()
	if o := r.Status().Objects[0]; o.Repairs != 1 || o.LastRepair.IsZero() || o.Have != 2 {
		t.Errorf("after: %+v", o)
	}
	if want := `change.op=replace change.kind="rule set" change.key=ip `; strings.Count(log.String(), want) != 1 {
		t.Errorf("want %s in %s", want, log.String())
	}
}

// TestStatusOfRefusedRules: rules that cannot be written make the part failed, and are not
// counted as there, until they can.
func TestStatusOfRefusedRules(t *testing.T) {
	h := newHost(t, iptNFT)
	save := filepath.Join(filepath.Dir(h.log), "iptables-save")
	if err := os.WriteFile(save, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := h.open(h.config())
	h.Do(func() error { _, err := r.Sync(t.Context(), wanted()); return err })
	refused := func(when string) {
		if s := r.Status(); s.State != dataplane.StateFailed || !strings.Contains(s.Err, "iptables-save") || s.Objects[0].Have != 1 || s.Objects[0].Wanted != 2 {
			t.Errorf("%s: %+v", when, s)
		}
	}
	refused("after Sync")
	for _, k := range r.keepers { // somebody undoes each repair
		for held := false; !held; _, held = r.report.Held(k.change()) {
			r.report.Repaired(k.change())
		}
	}
	h.Must(func() error { r.repair(t.Context()); return nil })
	refused("while a repair waits")
	h.become(iptNFT)
	h.Must(func() error { _, err := r.Sync(t.Context(), wanted()); return err })
	if s := r.Status(); s.State != dataplane.StateOK || s.Err != "" || s.Objects[0].Have != 2 {
		t.Errorf("got %+v", s)
	}
}

// TestCommentsAreNotChains: a comment that names chains of ours and of flannel makes nobody believe that
// the legacy tables have them.
func TestCommentsAreNotChains(t *testing.T) {
	h := newHost(t, iptLegacy)
	read := func(f family) (l legacyTables) {
		h.Must(func() (err error) { l, err = readLegacy(f); return err })
		return l
	}
	for _, f := range []family{ipv4, ipv6} {
		h.ipt(commandOf(f), "-N", "SOME")
		h.ipt(commandOf(f), "-A", "SOME", "-m", "comment", "--comment", "see OVERLAYD-7-FWD and FLANNEL-FWD", "-j", "ACCEPT")
		if l := read(f); l.mentions() || l.hasOurs() || !slices.Equal(l.chains, []string{"SOME"}) {
			t.Errorf("%s: chains %q, mentions %v", f, l.chains, l.mentions())
		}
		h.ipt(commandOf(f), "-t", "nat", "-N", "FLANNEL-POSTRTG")
		if l := read(f); !l.mentions() || l.hasOurs() {
			t.Errorf("%s: chains %q with one of flannel", f, l.chains)
		}
		h.ipt(commandOf(f), "-N", "OVERLAYD-7-FWD")
		if l := read(f); !l.mentions() || !l.hasOurs() || len(l.chains) != 3 {
			t.Errorf("%s: chains %q with one of ours", f, l.chains)
		}
	}
}
