package controller

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// manyPeers returns n peers, sorted, with a subnet each.
func manyPeers(n int) (peers []dataplane.Peer) {
	for i := range n {
		addr := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		peers = append(peers, dataplane.Peer{VTEP: dataplane.VTEP{Addr: addr, MAC: encap.MAC{2, 5: byte(i)}, VNI: 1},
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}})
	}
	return peers
}

// TestManyPeersAreANumber: fifty lines a minute, and then how many more there were, of each kind.
func TestManyPeersAreANumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := peerLog{log: slog.New(slog.NewTextHandler(&out, nil))}
		all := manyPeers(5000)
		p.note(t.Context(), time.Now(), all)
		if n := strings.Count(out.String(), `msg="peer added"`); n != 50 || !p.at.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("%d lines, the rest at %v, now is %v", n, p.at, time.Now())
		}
		p.note(t.Context(), time.Now(), all[3:]) // in the same minute
		time.Sleep(time.Minute)
		p.rest(t.Context())
		if text := out.String(); strings.Count(text, "\n") != 51 || !strings.Contains(text, "added=4950 removed=3\n") || !p.at.IsZero() {
			t.Errorf("%d lines, at the end %s", strings.Count(text, "\n"), text[strings.LastIndex(text[:len(text)-1], "\n")+1:])
		}
		out.Reset()
		p.note(t.Context(), time.Now(), all[4:])
		if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"peer removed" subnet=10.0.3.0/24 vtep=172.16.0.3`) {
			t.Errorf("a minute later: %s", text)
		}
	})
}

// TestPeerLogOfSameIsNothing: a list that has not changed costs no line and no allocation.
func TestPeerLogOfSameIsNothing(t *testing.T) {
	var out bytes.Buffer
	p := peerLog{log: slog.New(slog.NewTextHandler(&out, nil)), peers: manyPeers(1000)}
	again := manyPeers(1000)
	if n := testing.AllocsPerRun(10, func() { p.note(t.Context(), time.Time{}, again) }); n > 0 || out.Len() > 0 {
		t.Errorf("%v allocations: %s", n, out.String())
	}
}

// FuzzDiffPeers: what diffPeers says leads from one list to the other, and it says nothing twice.
func FuzzDiffPeers(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		some := func() (peers []dataplane.Peer) {
			for _, p := range manyPeers(12) {
				switch r.IntN(4) {
				case 0:
					continue
				case 1:
					p.MAC[4] = byte(r.IntN(2))
				case 2:
					p.Source = netip.AddrFrom4([4]byte{10, 255, 0, byte(r.IntN(2))})
				}
				if r.IntN(3) == 0 {
					p.Subnets = append(p.Subnets, netip.MustParsePrefix(fmt.Sprintf("10.200.%d.0/24", r.IntN(3))))
				}
				peers = append(peers, p)
			}
			return peers
		}
		was, is := some(), some()
		gone, come := diffPeers(was, is)
		now := map[place]int{}
		for _, p := range was {
			for _, at := range appendPlaces(nil, &p, nil) {
				now[at]++
			}
		}
		for _, at := range gone {
			now[at]--
		}
		for _, at := range come {
			now[at]++
		}
		for _, p := range is {
			for _, at := range appendPlaces(nil, &p, nil) {
				now[at]--
			}
		}
		for at, n := range now {
			if n != 0 {
				t.Errorf("seed %d: %v is wrong by %d", seed, at, n)
			}
		}
	})
}
