package guard

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// changeByOthers: what others change of the table in a way that opens it is repaired.
func TestAttack3RepairsWhatOpens(t *testing.T) {
	for name, command := range map[string][]string{
		"dormant":        {"add", "table", "inet", "overlayd-guard-1", "{ flags dormant; }"},
		"catchall":       {"add", "element", "inet", "overlayd-guard-1", "pair44_32", "{ * }"},
		"catchall pairs": {"add", "element", "inet", "overlayd-guard-1", "pair444_24", "{ * }"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			a.guard.keep(t, a.NS, func() {})
			a.Run("nft", command...)
			time.Sleep(3 * time.Second)
			n := a.guard.Status().Objects[0].Repairs
			text := "attack3 " + name
			for i := range 5 {
				sendRaw(w.stranger, packet(b.addr, a.addr, 1, testPort, a.frame(1, packet(w.hosts[2].podAddr(false), a.podAddr(false), 1, receivePort, fmt.Append(nil, text, i)))))
			}
			time.Sleep(300 * time.Millisecond)
			for i := range 5 {
				if p := w.place(fmt.Sprint(text, i)); p != "" {
					t.Errorf("forged packet arrived at %s, %d repairs", p, n)
				}
			}
		})
	}
}

// TestAttack3ChangeBesideSync: what others change just before the guard changes a rule itself is repaired, too. Run has not noticed it by then.
func TestAttack3ChangeBesideSync(t *testing.T) {
	for name, command := range map[string][]string{
		"rule added":    {"insert", "rule", "inet", "overlayd-guard-1", "plain", "accept"},
		"chain flushed": {"flush", "chain", "inet", "overlayd-guard-1", "plain"},
		"rules deleted": {"flush", "chain", "inet", "overlayd-guard-1", "here"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			w.stranger.Run("ip", "route", "replace", "10.42.0.0/16", "via", a.addr.String())
			plain := func(text []byte) {
				sendRaw(w.stranger, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
			}
			w.expect("before", a, dataplane.DropPlainSource, plain)
			a.Run("nft", command...)
			v := w.lastWanted(a)
			v.Peers[1].Subnets = append(v.Peers[1].Subnets, netip.MustParsePrefix("10.42.100.0/25")) // a new length of subnets: rules change
			a.guard.sync(t, a.NS, v)
			a.guard.keep(t, a.NS, func() {}) // the guard writes before it looks
			time.Sleep(3 * time.Second)
			w.expect("3 s after "+name, a, dataplane.DropPlainSource, plain)
			t.Logf("%d repairs", a.guard.Status().Objects[0].Repairs)
		})
	}
}
