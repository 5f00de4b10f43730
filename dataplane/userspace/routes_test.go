package userspace

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

var testLocal = local{addr: netip.MustParseAddr("192.0.2.2"), mac: encap.MAC{2, 2}, vni: testVNI, port: testPort}

func testPeer(addr, subnet string, mac encap.MAC) dataplane.Peer {
	p := dataplane.Peer{VTEP: dataplane.VTEP{MAC: mac, VNI: testVNI}, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}}
	p.Addr, _ = netip.ParseAddr(addr)
	return p
}

func TestRefusedPeersDoNotKeepOthersOut(t *testing.T) {
	mac := encap.MAC{2, 1}
	bad := map[string]dataplane.Peer{
		"no address":        testPeer("", "10.42.9.0/24", mac),
		"other family":      testPeer("2001:db8::1", "10.42.9.0/24", mac),
		"mapped address":    testPeer("::ffff:192.0.2.9", "10.42.9.0/24", mac),
		"any address":       testPeer("0.0.0.0", "10.42.9.0/24", mac),
		"multicast address": testPeer("224.0.0.1", "10.42.9.0/24", mac),
		"no MAC":            testPeer("192.0.2.9", "10.42.9.0/24", encap.MAC{}),
		"multicast MAC":     testPeer("192.0.2.9", "10.42.9.0/24", encap.MAC{1}),
	}
	for name, peer := range bad {
		t.Run(name, func(t *testing.T) {
			good := testPeer("192.0.2.1", "10.42.1.0/24", mac)
			table, err := newTable(testLocal, dataplane.Wanted{MTU: testMTU, Peers: []dataplane.Peer{peer, good}})
			var pe *dataplane.PeerError
			if !errors.As(err, &pe) || pe.Peer.Subnets[0] != peer.Subnets[0] {
				t.Errorf("error %v", err)
			}
			if e := table.routes.Lookup(podA); e == nil || e.addr != good.Addr {
				t.Errorf("the other peer's entry is %v", e)
			}
			if e := table.routes.Lookup(netip.MustParseAddr("10.42.9.1")); e != nil {
				t.Errorf("the refused peer has entry %v", e)
			}
		})
	}
}

func TestTableOf5000PeersIsFast(t *testing.T) {
	w := dataplane.Wanted{MTU: testMTU}
	for i := range 5000 {
		w.Peers = append(w.Peers, dataplane.Peer{
			VTEP:    dataplane.VTEP{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}).Next(), MAC: encap.MAC{2, 1}},
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	best := time.Hour
	for range 5 {
		start := time.Now()
		table, err := newTable(testLocal, w)
		best = min(best, time.Since(start))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range w.Peers {
			if e := table.routes.Lookup(p.Subnets[0].Addr().Next()); e == nil || e.addr != p.Addr || table.vteps.Lookup(p.Addr) != e {
				t.Fatalf("peer %v has entry %v", p, e)
			}
		}
	}
	t.Logf("5000 peers: %v", best)
	if limit := 20 * time.Millisecond; best > limit {
		t.Errorf("5000 peers take %v, want at most %v", best, limit)
	}
}

func TestConfigCheckNamesTheField(t *testing.T) {
	good := Config{Local: testLocal.addr, Public: testLocal.addr, VNI: testVNI, Port: testPort, MTU: testMTU}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Config){
		"Local":  func(c *Config) { c.Local = netip.Addr{} },
		"Public": func(c *Config) { c.Public = netip.MustParseAddr("2001:db8::1") },
		"VNI":    func(c *Config) { c.VNI = 1 << 24 },
		"Port":   func(c *Config) { c.Port = 0 },
		"MTU":    func(c *Config) { c.MTU = 67 },
	} {
		c := good
		change(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
