package masq

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// restored is what iptables-restore --noflush makes of a table: a slow model of
// iptables(8), with its refusals.
func restored(t savedTable, lines []string) (savedTable, error) {
	t = savedTable{slices.Clone(t.chains), slices.Clone(t.rules)}
	inChain := func(chain string) func(savedRule) bool { return func(r savedRule) bool { return r.chain == chain } }
	for _, line := range lines {
		verb, rest, _ := strings.Cut(line, " ")
		chain, spec, _ := strings.Cut(rest, " ")
		if name, ok := strings.CutPrefix(verb, ":"); ok {
			if !slices.Contains(t.chains, name) {
				t.chains = append(t.chains, name)
			}
			t.rules = slices.DeleteFunc(t.rules, inChain(name))
			continue
		}
		if !slices.Contains(t.chains, chain) {
			return t, fmt.Errorf("%s: no chain", line)
		}
		switch verb {
		case "-A":
			t.rules = append(t.rules, savedRule{chain, spec})
		case "-D":
			i := slices.Index(t.rules, savedRule{chain, spec})
			if i < 0 {
				return t, fmt.Errorf("%s: no such rule", line)
			}
			t.rules = slices.Delete(t.rules, i, i+1)
		case "-F":
			t.rules = slices.DeleteFunc(t.rules, inChain(chain))
		case "-X":
			if len(t.of(chain)) > 0 || len(t.to(chain)) > 0 {
				return t, fmt.Errorf("%s: in use", line)
			}
			t.chains = slices.DeleteFunc(t.chains, func(c string) bool { return c == chain })
		default:
			return t, fmt.Errorf("%s: unknown", line)
		}
	}
	return t, nil
}

// someTable is a table in which others, flannel and an overlayd that was killed at any
// moment have left what they liked.
func someTable(rng *rand.Rand) savedTable {
	t := savedTable{chains: []string{"POSTROUTING", "KUBE-POSTROUTING"}}
	for _, chain := range []string{"OVERLAYD-7-POSTRTG", "OVERLAYD-70-POSTRTG", flannelMasq} {
		if rng.IntN(2) == 0 {
			t.chains = append(t.chains, chain)
		}
	}
	conditions := []string{"", "-o eth0 ", "-s 10.244.0.0/16 ", "-s 10.99.0.0/16 ", "! -s 10.244.0.0/16 -d 10.244.1.0/24 ", `-m comment --comment "-j OVERLAYD-7-POSTRTG" `,
		`-m comment --comment "overlayd masq" `, `-m comment --comment -j `, `-m comment --comment "\" -s 10.244.0.0/16 " `}
	targets := append(slices.Clone(t.chains[1:]), "RETURN", "MASQUERADE --random-fully", "ACCEPT")
	for range rng.IntN(12) {
		chain := t.chains[rng.IntN(len(t.chains))]
		target := targets[rng.IntN(len(targets))]
		if target == chain || strings.HasPrefix(chain, "OVERLAYD") && slices.Contains(t.chains, target) {
			target = "RETURN" // chains of ours lead to no other
		}
		t.rules = append(t.rules, savedRule{chain, conditions[rng.IntN(len(conditions))] + "-j " + target})
	}
	return t
}

// TestEditFromAnyState: from whatever there is, one edit makes the chain and its one jump as
// wanted, is accepted, touches nothing of others, and changes nothing the second time.
func TestEditFromAnyState(t *testing.T) {
	const chain = "OVERLAYD-7-POSTRTG"
	network := netip.MustParsePrefix(testNetwork)
	rules := []rule{{marked: true, do: leave}, {src: match{prefix: network}, do: masquerade, random: true}}
	rng := rand.New(rand.NewPCG(1, 2))
	foreign := func(table savedTable) (rest []savedRule) {
		for _, r := range table.rules {
			if r.chain != chain && r.target() != chain {
				rest = append(rest, r)
			}
		}
		return rest
	}
	for i := range 3000 {
		before := someTable(rng)
		w := iptWant{table: natTable, base: postrouting, chain: chain}
		if i%3 > 0 {
			w.rules = rules
		}
		after, err := restored(before, before.edit(w))
		if err != nil {
			t.Fatalf("%+v: %v", before, err)
		}
		if diff := cmp.Diff(foreign(before), foreign(after), cmp.AllowUnexported(savedRule{})); diff != "" {
			t.Fatalf("%+v: rules of others changed:\n%s", before, diff)
		}
		var want, jumps []savedRule
		for _, r := range w.rules {
			want = append(want, savedRule{chain, specification(r)})
		}
		if w.rules != nil {
			jumps = []savedRule{{postrouting, "-j " + chain}}
		}
		if !slices.Equal(after.of(chain), want) || !slices.Equal(after.to(chain), jumps) || slices.Contains(after.chains, chain) != (w.rules != nil) {
			t.Fatalf("%+v became %+v, want %+v after %+v", before, after, want, jumps)
		}
		again, err := restored(after, after.edit(w))
		if err != nil || again.text(chain) != after.text(chain) {
			t.Fatalf("the second edit of %+v: %+v, %v", after, again, err)
		}
	}
}

// TestLeaveFromAnyState: what flannel did for one network goes, and what it does for
// another, in the same chain, stays.
func TestLeaveFromAnyState(t *testing.T) {
	network := netip.MustParsePrefix("10.244.0.0/16")
	rng := rand.New(rand.NewPCG(3, 4))
	removed := 0
	for range 3000 {
		before := someTable(rng)
		for _, chain := range []string{flannelMasq} { // flannel's chain leads to no other
			before.rules = slices.DeleteFunc(before.rules, func(r savedRule) bool { return r.chain == chain && slices.Contains(before.chains, r.target()) })
		}
		lines := before.leave(network)
		after, err := restored(before, lines)
		if err != nil {
			t.Fatalf("%+v: %v", before, err)
		}
		for _, r := range after.of(flannelMasq) {
			if it, _ := r.names(network); it {
				t.Fatalf("%+v: left %+v", before, r)
			}
		}
		for _, r := range before.rules {
			if it, any := r.names(network); any && !it && !slices.Contains(after.rules, r) && r.target() != flannelMasq {
				t.Fatalf("%+v: removed %+v of another network", before, r)
			}
		}
		if len(lines) > 0 {
			removed++
		}
		if again := after.leave(network); len(again) > 0 {
			t.Fatalf("%+v: the second time removes %q", before, again)
		}
	}
	if removed == 0 {
		t.Error("nothing was ever removed")
	}
}

// TestParseSaveReadsWhatIsSaved writes random tables as iptables-save does.
func TestParseSaveReadsWhatIsSaved(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		want := map[string]savedTable{}
		var text strings.Builder
		for _, name := range []string{"raw", natTable, filterTable}[:1+rng.IntN(3)] {
			table := someTable(rng)
			want[name] = table
			fmt.Fprintf(&text, "# Generated by iptables-save v1.8.9 (nf_tables)\n*%s\n", name)
			for _, c := range table.chains {
				fmt.Fprintf(&text, ":%s %s [%d:%d]\n", c, []string{"-", "ACCEPT", "DROP"}[rng.IntN(3)], rng.Uint32(), rng.Uint32())
			}
			for _, r := range table.rules {
				fmt.Fprintf(&text, "-A %s %s\n", r.chain, r.spec)
			}
			text.WriteString("COMMIT\n# Completed\n")
		}
		if diff := cmp.Diff(want, parseSave(text.String()), cmp.AllowUnexported(savedTable{}, savedRule{})); diff != "" {
			t.Fatalf("%s\n(-want +got):\n%s", &text, diff)
		}
	}
	for _, rubbish := range []string{"", "\n\n", "COMMIT\n", "# *nat\n", "iptables: no such table"} {
		if got := parseSave(rubbish); len(got) != 0 {
			t.Errorf("%q: read as tables %v", rubbish, slices.Sorted(maps.Keys(got)))
		}
	}
}

func TestSavedRule(t *testing.T) {
	network := netip.MustParsePrefix(testNetwork)
	for _, c := range []struct {
		spec, target string
		it, any      bool
	}{
		{"", "", false, false},
		{"-j", "", false, false},
		{"-s", "", false, false},
		{"-j RETURN", "RETURN", false, false},
		{"-g CHAIN", "CHAIN", false, false},
		{"-s 10.244.0.0/16 -j ACCEPT", "ACCEPT", true, true},
		{"! -d 10.244.0.0/16 -j ACCEPT", "ACCEPT", true, true},
		{"-s 10.244.1.0/24 -j ACCEPT", "ACCEPT", false, true},
		{"-s 10.244.0.0/17 -d 10.244.0.0/16 -j ACCEPT", "ACCEPT", true, true},
		{"-s 10.244.0.0/255.255.0.0 -j ACCEPT", "ACCEPT", false, true},
		{"-j MASQUERADE --to-ports 1-2 --random-fully", "MASQUERADE", false, false},
		{`-m comment --comment "-j X" -j Y`, "Y", false, false},
		{`-j Y -m comment --comment "-j X"`, "Y", false, false},
		{`-m comment --comment -j -j Y`, "Y", false, false},
		{`-m comment --comment "overlayd masq" -j Y`, "Y", false, false},
		{`-s 10.244.0.0/16 -m comment --comment "a \" -j X \\" -j Y`, "Y", true, true},
		{`-m comment --comment "-s 10.244.0.0/16" -j Y`, "Y", false, false},
		{`-m comment --comment " -s 10.244.0.0/16 -j X"`, "", false, false},
	} {
		r := savedRule{"C", c.spec}
		it, any := r.names(network)
		if got := r.target(); got != c.target || it != c.it || any != c.any {
			t.Errorf("%q: target %q, names it %v, any %v, want %q, %v, %v", c.spec, got, it, any, c.target, c.it, c.any)
		}
	}
}

// TestSpecificationsTellRulesApart: rules that do something else read as something else, or
// an edit by others would not be noticed.
func TestSpecificationsTellRulesApart(t *testing.T) {
	a, b := match{prefix: netip.MustParsePrefix(testNetwork)}, match{prefix: netip.MustParsePrefix(testSubnet)}
	rules := []rule{
		{do: leave}, {do: accept}, {do: masquerade}, {do: masquerade, random: true}, {do: masquerade, ports: portRange{1024, 2000}},
		{do: masquerade, ports: portRange{1024, 2001}}, {do: leave, marked: true}, {do: leave, tunnel: 8472}, {do: leave, tunnel: 8473}, {do: leave, udp: true},
		{do: leave, comment: masqComment}, {do: leave, comment: forwardComment},
	}
	for _, m := range []match{a, b, {prefix: a.prefix, not: true}} {
		rules = append(rules, rule{src: m}, rule{dst: m}, rule{src: m, dst: b})
	}
	seen := map[string]rule{}
	for _, r := range rules {
		text := specification(r)
		if other, ok := seen[text]; ok {
			t.Errorf("%+v and %+v both read %q", r, other, text)
		}
		seen[text] = r
		if strings.Contains(text, "  ") || strings.TrimSpace(text) != text {
			t.Errorf("%q has blanks that iptables-save does not write", text)
		}
	}
}

// TestToolWithoutRandomFully: an old iptables would refuse the whole table for the word.
func TestToolWithoutRandomFully(t *testing.T) {
	rules := []rule{{do: masquerade, random: true}, {do: accept}}
	for _, r := range withoutRandom(rules) {
		if r.random {
			t.Errorf("%+v is random", r)
		}
	}
	if !rules[0].random {
		t.Error("the caller's rules were changed")
	}
}
