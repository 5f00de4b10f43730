package xtables

import (
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

func command(f Family) string { return f.String() + "tables-legacy" }

// read reads table filter of a namespace.
func read(ns *netnstest.NS, f Family) (t Table) {
	ns.Must(func() (err error) { t, err = Read(f, "filter"); return err })
	return t
}

// What is not in use is not listed, and so never made by a reader.
func TestNames(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	for _, want := range []string{"", "filter"} {
		for _, f := range []Family{nft.IPv4, nft.IPv6} {
			ns.Must(func() error {
				names, err := Names(f)
				if got := strings.Join(names, " "); got != want || err != nil {
					t.Errorf("%s: %q, %v; want %q", f, got, err, want)
				}
				return nil
			})
			ns.Run(command(f), "-L")
		}
	}
}

// Every condition of a rule is read as it was written, in either family.
func TestRules(t *testing.T) {
	t.Parallel()
	for f, subnet := range map[Family]string{nft.IPv4: "10.5.0.0/16", nft.IPv6: "fd00::/48"} {
		ns := netnstest.New(t)
		ns.Run(command(f), "-N", "MINE")
		ns.Run(command(f), "-A", "FORWARD", "-s", subnet, "!", "-d", subnet, "-i", "eth+", "!", "-o", "cni0", "-p", "udp", "--dport", "8472", "-m", "comment", "--comment", "x", "-g", "MINE")
		ns.Run(command(f), "-A", "MINE", "!", "-p", "tcp", "-j", "REJECT")
		ns.Run(command(f), "-A", "MINE", "-j", "LOG")
		ns.Run(command(f), "-P", "FORWARD", "DROP")
		table := read(ns, f)
		if !slices.Equal(table.Chains(), []string{"MINE"}) || !table.Drops(unix.NF_INET_FORWARD) || table.Drops(unix.NF_INET_LOCAL_IN) || table.Drops(unix.NF_INET_PRE_ROUTING) || table.Drops(99) {
			t.Errorf("%s: chains %q", f, table.Chains())
		}
		rules := table.Rules()
		first, policy, ok := table.First(unix.NF_INET_FORWARD)
		i := slices.IndexFunc(rules, func(r Rule) bool { return r.At == first })
		if !ok || i < 0 || rules[i].Next != policy {
			t.Fatalf("%s: first %d, policy %d, rules %+v", f, first, policy, rules)
		}
		r := rules[i]
		if r.Src.Not || !r.Dst.Not || r.Src.Addr != r.Dst.Addr || r.In.Not || !r.Out.Not || !r.Goto || r.Protocol != (Protocol{unix.IPPROTO_UDP, false}) {
			t.Errorf("%s: %+v", f, r)
		}
		if string(r.In.Name[:3]) != "eth" || r.In.Mask[3] != 0 || string(r.Out.Name[:5]) != "cni0\x00" || r.Out.Mask[4] != 0xff {
			t.Errorf("%s: interfaces %q %x, %q %x", f, r.In.Name, r.In.Mask, r.Out.Name, r.Out.Mask)
		}
		if len(r.Matches) != 2 || r.Matches[0].Name != "udp" || r.Matches[1].Name != "comment" || r.Target.Name != "" {
			t.Errorf("%s: matches %+v", f, r.Matches)
		}
		inner := slices.IndexFunc(rules, func(x Rule) bool { return x.At == r.Verdict })
		if inner < 1 || rules[inner-1].Chain != "MINE" || rules[inner].Target.Name != "REJECT" || rules[inner].Protocol != (Protocol{unix.IPPROTO_TCP, true}) ||
			rules[inner+1].Target.Name != "LOG" || rules[inner+2].Verdict != Return {
			t.Errorf("%s: jumps to %d of %+v", f, r.Verdict, rules)
		}
		if last := rules[len(rules)-1]; last.Chain != errorTarget {
			t.Errorf("%s: ends with %+v", f, last)
		}
	}
}

// Counters are no part of what is compared.
func TestEntriesWithoutCounters(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run(command(nft.IPv4), "-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT")
	before := read(ns, nft.IPv4)
	ns.Must(func() error {
		c, err := net.Dial("udp4", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	if after := read(ns, nft.IPv4); string(after.Entries) != string(before.Entries) {
		t.Error("a packet changes the entries")
	}
}

func TestReadFails(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Must(func() error {
		if _, err := Read(nft.IPv4, "none"); err == nil || !strings.Contains(err.Error(), "legacy table none") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

// FuzzRules: whatever the kernel says that a table is, reading it ends, and its rules lie inside. The corpus has tables of Linux 6.18.
func FuzzRules(f *testing.F) {
	f.Add([]byte{}, []byte{}, true)
	f.Add(make([]byte, 100), make([]byte, 400), false)
	f.Fuzz(func(t *testing.T, about, entries []byte, six bool) {
		family := nft.IPv4
		if six {
			family = nft.IPv6
		}
		table := Parse(family, "filter", about, entries)
		end := 0
		for _, r := range table.Rules() {
			if r.At != end || r.Next <= r.At || r.Next > len(entries) {
				t.Fatalf("rule at %d, next %d, of %d bytes", r.At, r.Next, len(entries))
			}
			end = r.Next
		}
		for hook := range uint32(6) {
			table.Drops(hook)
		}
		table.info.valid = 1 << unix.NF_INET_FORWARD
		for at := range uint32(len(entries)) {
			table.info.underflow[unix.NF_INET_FORWARD] = at
			table.Drops(unix.NF_INET_FORWARD)
		}
		if n := len(table.Chains()); n > len(table.Rules()) {
			t.Fatalf("%d chains of %d rules", n, len(table.Rules()))
		}
	})
}
