package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// rules are such as a part of an overlay writes, and how nft shows them.
func rules(t testing.TB, f Family, network string) (encoded [][][]byte, shown []string) {
	t.Helper()
	p := netip.MustParsePrefix(network)
	masquerade, err := Masquerade(f, 1024, 8471, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		list  []expr.Any
		shown string
	}{
		{append(slices.Concat(UDP(), DestinationPort(8472), FromLocal()), &expr.Verdict{Kind: expr.VerdictReturn}),
			"udp dport 8472 fib saddr type local return"},
		{append(Marked(0x4000), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}), "meta mark & 0x00004000 == 0x00004000 counter packets 0 bytes 0 accept"},
		{append(Address(f, f.Source(), p, false), &expr.Verdict{Kind: expr.VerdictAccept}), f.String() + " saddr " + network + " accept"},
		{append(Address(f, f.Destination(), p, true), &expr.Verdict{Kind: expr.VerdictDrop}), f.String() + " daddr != " + network + " drop"},
		{UDP(), "meta l4proto udp masquerade to :1024-8471 fully-random"},
	} {
		e, err := Encode(f, r.list...)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.shown, "masquerade") {
			e = append(e, masquerade...)
		}
		encoded, shown = append(encoded, e), append(shown, r.shown)
	}
	return encoded, shown
}

func postrouting() *Hook { return &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100} }

// write makes table t with a base chain c of the rules, and a chain d that c jumps to.
func write(t *testing.T, ns *netnstest.NS, f Family, network string) (shown []string) {
	t.Helper()
	encoded, shown := rules(t, f, network)
	jump, err := Jump(f, "d")
	if err != nil {
		t.Fatal(err)
	}
	steps := []Step{NewTable(f, "t"), NewChain(f, "t", "d", nil), NewChain(f, "t", "c", postrouting()), NewRule(f, "t", "c", jump, "")}
	for _, e := range encoded {
		steps = append(steps, NewRule(f, "t", "c", e, "of a test"))
	}
	ns.Must(func() error { return Commit(steps) })
	return shown
}

// The kernel takes what is written, and the nft command shows what was meant.
func TestCommitWritesWhatNFTShows(t *testing.T) {
	for f, network := range map[Family]string{IPv4: "10.5.0.0/16", IPv6: "fd00::/48"} {
		ns := netnstest.New(t)
		shown := write(t, ns, f, network)
		want := "table " + f.String() + " t {\n\tchain d {\n\t}\n\n\tchain c {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n" +
			"\t\tcounter packets 0 bytes 0 jump d\n\t\t" + strings.Join(shown, " comment \"of a test\"\n\t\t") + " comment \"of a test\"\n\t}\n}"
		if diff := cmp.Diff(want, strings.TrimSpace(ns.Run("nft", "list", "ruleset"))); diff != "" {
			t.Error(diff)
		}
	}
}

func TestReadTellsWhatWasWritten(t *testing.T) {
	ns := netnstest.New(t)
	write(t, ns, IPv4, "10.5.0.0/16")
	ns.Run("nft", "add", "chain", "ip", "t", "f", "{ type filter hook forward priority 0; policy drop; }")
	ns.Must(func() error {
		return Read(IPv4, func(r Reader) error {
			tables, err := r.Tables()
			if err != nil || !slices.Equal(tables, []string{"t"}) {
				t.Errorf("tables %v, %v", tables, err)
			}
			if n, _, err := r.Table("t"); n != 3 || err != nil {
				t.Errorf("%d chains, %v", n, err)
			}
			if n, _, err := r.Table("none"); n != -1 || err != nil {
				t.Errorf("%d chains of no table, %v", n, err)
			}
			chains, err := r.Chains()
			if err != nil || len(chains) != 3 {
				t.Fatalf("chains %v, %v", chains, err)
			}
			for _, c := range chains {
				if (c.Base != nil && c.Base.Drop) != (c.Name == "f") || (c.Base == nil) != (c.Name == "d") || (c.Hook == "") != (c.Name == "d") || !c.Exists {
					t.Errorf("got %+v", c)
				}
			}
			c, err := r.Chain("t", "c")
			if err != nil || len(c.Rules) != 6 {
				t.Fatalf("got %+v, %v", c, err)
			}
			if first := c.Rules[0]; first.Target() != "d" || !first.IsPlainJump() || first.Chain != "c" || first.Handle == 0 || first.Comment != "" {
				t.Errorf("got %+v", first)
			}
			for i, want := range []string{"[]", "[]", "[]", "[10.5.0.0/16]", "[10.5.0.0/16]", "[]"} {
				if got := c.Rules[i].Prefixes(IPv4); len(got) != strings.Count(want, "/") || len(got) > 0 && got[0].String() != "10.5.0.0/16" {
					t.Errorf("rule %d: prefixes %v, want %s", i, got, want)
				}
			}
			for _, rule := range c.Rules[1:] {
				if rule.Comment != "of a test" {
					t.Errorf("comment %q of %+v", rule.Comment, rule)
				}
			}
			if none, err := r.Chain("t", "none"); none.Exists || err != nil || none.Name != "none" {
				t.Errorf("got %+v, %v", none, err)
			}
			return nil
		})
	})
}

// Text does not depend on counters, and on everything else.
func TestText(t *testing.T) {
	ns := netnstest.New(t)
	write(t, ns, IPv4, "10.5.0.0/16")
	text := func() (s string) {
		ns.Must(func() error {
			return Read(IPv4, func(r Reader) error {
				c, err := r.Chain("t", "c")
				s = c.Text()
				return err
			})
		})
		return s
	}
	before := text()
	ns.Run("nft", "reset", "counters")
	if before != text() {
		t.Error("counters change the text")
	}
	for _, change := range []string{"add rule ip t c accept", "add chain ip t c { policy drop; }"} {
		ns.Run("nft", strings.Fields(change)...)
		if now := text(); now == before {
			t.Errorf("%s does not change the text", change)
		} else {
			before = now
		}
	}
}

// A batch happens as a whole: a refused step leaves nothing of those before it, and is named.
func TestCommitIsAtomic(t *testing.T) {
	ns := netnstest.New(t)
	err := ns.Do(func() error { return Commit([]Step{NewTable(IPv4, "t"), DeleteTable(IPv4, "none")}) })
	if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "delete table ip none") {
		t.Errorf("got %v", err)
	}
	if out := ns.Run("nft", "list", "ruleset"); out != "" {
		t.Errorf("there is %s", out)
	}
	ns.Must(func() error { return Commit(nil) })
}

// TestCommitOfManySteps: the answers to many steps have room, and the error about one of them names it.
func TestCommitOfManySteps(t *testing.T) {
	n := netnstest.New(t)
	steps := []Step{NewTable(Inet, "many")}
	for i := range 5000 {
		steps = append(steps, NewChain(Inet, "many", fmt.Sprint("c", i), nil))
	}
	n.Must(func() error { return Commit(steps) })
	last := NewChain(Inet, "none", "last", nil)
	if err := n.Do(func() error { return Commit(append(steps, last)) }); err == nil || !strings.Contains(err.Error(), "add chain inet none last: netlink receive: no such file or directory") {
		t.Errorf("a chain of a table that there is not: %v", err)
	}
}

func TestDeletions(t *testing.T) {
	ns := netnstest.New(t)
	write(t, ns, IPv6, "fd00::/48")
	ns.Must(func() error {
		var c Chain
		err := Read(IPv6, func(r Reader) (err error) { c, err = r.Chain("t", "c"); return err })
		if err != nil {
			return err
		}
		return Commit([]Step{DeleteRule(IPv6, "t", "c", c.Rules[0].Handle), DeleteChain(IPv6, "t", "d")})
	})
	if out := ns.Run("nft", "list", "ruleset"); strings.Contains(out, "jump") || strings.Contains(out, "chain d") || !strings.Contains(out, "masquerade") {
		t.Errorf("there is %s", out)
	}
	ns.Must(func() error { return Commit([]Step{DeleteRule(IPv6, "t", "c", 0), DeleteChain(IPv6, "t", "c")}) })
	if out := ns.Run("nft", "list", "ruleset"); strings.Contains(out, "chain") {
		t.Errorf("there is %s", out)
	}
	step := DeleteTable(IPv6, "t")
	ns.Must(func() error { return Commit([]Step{step}) })
	if out := ns.Run("nft", "list", "ruleset"); out != "" || step.String() != "delete table ip6 t" {
		t.Errorf("after %v there is %s", step, out)
	}
}

// Each batch is one generation, so that a reader can tell whether somebody else wrote.
func TestGeneration(t *testing.T) {
	ns := netnstest.New(t)
	generation := func() (n uint32) {
		ns.Must(func() error {
			return Read(IPv4, func(r Reader) (err error) { n, err = r.Generation(); return err })
		})
		return n
	}
	before := generation()
	ns.Must(func() error { return Commit([]Step{NewTable(IPv4, "a"), NewTable(IPv4, "b")}) })
	if got := generation(); got != before+1 {
		t.Errorf("generation %d after %d", got, before)
	}
}

func TestReadTriesAgainWhileOthersWrite(t *testing.T) {
	for _, tc := range []struct {
		fails, calls int
		want         error
	}{{0, 1, nil}, {3, 4, nil}, {1000, readTries, ErrChanging}} {
		calls := 0
		err := Read(IPv4, func(Reader) error {
			if calls++; calls <= tc.fails {
				return ErrChanging
			}
			return nil
		})
		if calls != tc.calls || !errors.Is(err, tc.want) {
			t.Errorf("%d failures: %d calls, %v", tc.fails, calls, err)
		}
	}
}

func TestChangedTable(t *testing.T) {
	header := func(subsystem, kind uint16) unix.NlMsghdr { return unix.NlMsghdr{Type: subsystem<<8 | kind} }
	body := NewTable(IPv6, "t").message.Data
	for _, tc := range []struct {
		name string
		h    unix.NlMsghdr
		body []byte
		want bool
	}{
		{"table", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWTABLE), body, true},
		{"rule", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_DELRULE), DeleteRule(IPv6, "t", "c", 1).message.Data, true},
		{"chain", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWCHAIN), NewChain(IPv6, "t", "c", postrouting()).message.Data, true},
		{"set", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWSET), body, false},
		{"generation", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWGEN), body, false},
		{"other subsystem", header(unix.NFNL_SUBSYS_CTNETLINK, unix.NFT_MSG_NEWTABLE), body, false},
		{"short", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWTABLE), body[:3], false},
		{"no name", header(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWTABLE), body[:4], false},
	} {
		f, table, ok := ChangedTable(tc.h, tc.body)
		if ok != tc.want || ok && (f != IPv6 || table != "t") {
			t.Errorf("%s: got %v %q %v", tc.name, f, table, ok)
		}
	}
}

// encodedRule is a rule as the kernel tells it.
func encodedRule(exprs [][]byte) []byte {
	return attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_CHAIN, "c")
		e.Uint64(unix.NFTA_RULE_HANDLE, 9)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, x := range exprs {
				e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, x)
			}
			return nil
		})
	})
}

func TestParseRule(t *testing.T) {
	encoded, _ := rules(t, IPv4, "10.5.0.0/16")
	for i, exprs := range encoded {
		r, err := parseRule(encodedRule(exprs))
		if err != nil || r.Chain != "c" || r.Handle != 9 || len(r.Exprs) != len(exprs) {
			t.Errorf("rule %d: parsed %+v: %v", i, r, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	exprs, err := Jump(IPv4, "c")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(NewRule(IPv4, "t", "c", exprs, "of a test").message.Data[sizeofNfgenmsg:])
	f.Add(encodedRule(exprs))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if r, err := parseRule(b); err == nil {
			r.Prefixes(IPv4)
			r.Target()
			_ = r.Text()
		}
		_, _ = parseChain(b)
		ChangedTable(unix.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE}, b)
	})
}
