package nft

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// sets has each kind of set that the kernel keeps in another way.
const sets = `table ip t {
	set plain { type ipv4_addr; elements = { 10.5.0.1 } }
	set ranges { type ipv4_addr; flags interval; elements = { 10.5.0.0/16, 10.7.0.0-10.7.0.9 } }
	set ports { type inet_service; elements = { 53, 8472 } }
	set portranges { type inet_service; flags interval; elements = { 1024-2048, 8000-65535 } }
	set both { type ipv4_addr . inet_service; elements = { 10.5.0.1 . 8472 } }
	set bothranges { type ipv4_addr . inet_service; flags interval; elements = { 10.5.0.0/16 . 8000-9000 } }
	set empty { type ipv4_addr; flags interval; }
	map to { type ipv4_addr : inet_service; elements = { 10.5.0.1 : 80 } }
	chain c { }
	map verdicts { type inet_service : verdict; elements = { 22 : accept, 23 : jump c, 24 : drop } }
}`

// TestLookup: an element is found as the kernel finds it for a packet, in every kind of set, and nothing else is.
func TestLookup(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("sh", "-c", "nft -f - <<'E'\n"+sets+"\nE")
	addr := func(s string) []byte { return netip.MustParseAddr(s).AsSlice() }
	port := func(p uint16) []byte { return []byte{byte(p >> 8), byte(p), 0, 0} }
	both := func(s string, p uint16) []byte { return append(addr(s), port(p)...) }
	for _, c := range []struct {
		set   string
		key   []byte
		found bool
	}{
		{"plain", addr("10.5.0.1"), true}, {"plain", addr("10.5.0.2"), false},
		{"ranges", addr("10.5.0.0"), true}, {"ranges", addr("10.5.9.9"), true}, {"ranges", addr("10.5.255.255"), true},
		{"ranges", addr("10.6.0.0"), false}, {"ranges", addr("10.4.255.255"), false}, {"ranges", addr("10.7.0.9"), true}, {"ranges", addr("10.7.0.10"), false},
		{"ranges", addr("0.0.0.1"), false}, {"ranges", addr("255.255.255.255"), false},
		{"ports", port(8472), true}, {"ports", port(8473), false},
		{"portranges", port(8472), true}, {"portranges", port(65535), true}, {"portranges", port(1023), false}, {"portranges", port(3000), false},
		{"both", both("10.5.0.1", 8472), true}, {"both", both("10.5.0.2", 8472), false},
		{"bothranges", both("10.5.7.1", 8472), true}, {"bothranges", both("10.5.7.1", 7999), false},
		{"empty", addr("10.5.0.1"), false},
		{"to", addr("10.5.0.1"), true}, {"verdicts", port(23), true}, {"verdicts", port(25), false},
	} {
		ns.Must(func() error {
			return Read(IPv4, func(r Reader) error {
				e, err := r.Lookup("t", c.set, c.key)
				if err != nil || e.Found != c.found {
					t.Errorf("%s %v: %+v, %v; want %v", c.set, c.key, e, err, c.found)
				}
				switch {
				case c.set == "to" && (len(e.Data) < 2 || e.Data[1] != 80):
					t.Errorf("data %v", e.Data)
				case c.set == "verdicts" && e.Found && (e.Verdict == nil || e.Verdict.Code != unix.NFT_JUMP || e.Verdict.Chain != "c"):
					t.Errorf("verdict %+v", e.Verdict)
				}
				return nil
			})
		})
	}
}

// TestLookupFails: a set that is not there, and a key that is too short, are errors.
func TestLookupFails(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("sh", "-c", "nft -f - <<'E'\n"+sets+"\nE")
	ns.Must(func() error {
		return readOnce(IPv4, func(r Reader) error {
			for set, key := range map[string][]byte{"none": {1, 2, 3, 4}, "plain": {1}, "": nil} {
				if e, err := r.Lookup("t", set, key); err == nil {
					t.Errorf("%q: %+v", set, e)
				}
			}
			return nil
		})
	})
}

// TestChainPlaces: where a base chain is.
func TestChainPlaces(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "eth7", "type", "bridge")
	ns.Run("nft", "add", "table", "netdev", "t")
	ns.Run("nft", "add", "chain", "netdev", "t", "c", "{ type filter hook ingress device eth7 priority -5; policy drop; }")
	ns.Must(func() error {
		return Read(Netdev, func(r Reader) error {
			list, err := r.Chains()
			if err != nil || len(list) != 1 || len(list[0].Devices) == 0 || list[0].Devices[0] != "eth7" ||
				*list[0].Base != (Hook{Type: "filter", Number: unix.NF_NETDEV_INGRESS, Priority: -5, Drop: true}) {
				t.Errorf("got %+v, %v", list, err)
			}
			return nil
		})
	})
}
