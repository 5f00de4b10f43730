package userspace

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// TestRoutesForEachSubnet: on a network that holds an address of the underlay each subnet has a route,
// but for those that are direct or refused. One that somebody else has costs only its peer. A direct
// route that is no longer wanted is replaced at once, and the whole network gets its route back.
func TestRoutesForEachSubnet(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	w := h.wanted()
	direct := testPeer("192.0.2.7", "10.42.7.0/24", encap.MAC{2, 7})
	direct.Direct = true
	tunnel := direct
	tunnel.Direct = false
	taken, refused := testPeer("192.0.2.8", "10.42.8.0/24", encap.MAC{2, 8}), testPeer("127.0.0.1", "10.42.6.0/24", encap.MAC{2, 6})
	h.Run("ip", "route", "add", "10.42.8.0/24", "via", "192.0.2.1", "proto", "static")
	h.Run("ip", "route", "add", "10.42.7.0/24", "via", "192.0.2.1", "proto", "211") // as hostroute makes it
	const pods = "10.42.1.0/24 dev veth0 proto kernel scope link src 10.42.1.1 \n"
	const foreign = "10.42.8.0/24 via 192.0.2.1 dev eth0 proto static "
	for _, step := range []struct {
		name     string
		underlay []netip.Prefix
		peers    []dataplane.Peer
		want     string
	}{
		{"one", nil, []dataplane.Peer{direct, taken}, "10.42.0.0/16 dev flannel.1 proto 211 scope link metric 1048576 \n" + pods + "10.42.7.0/24 via 192.0.2.1 dev eth0 proto 211 \n" + foreign},
		{"each", []netip.Prefix{netip.MustParsePrefix("10.42.99.1/32")}, []dataplane.Peer{direct, taken, refused, testPeer("192.0.2.9", "10.42.9.0/24", encap.MAC{2, 9})},
			pods + "10.42.7.0/24 via 192.0.2.1 dev eth0 proto 211 \n" + foreign + "\n10.42.9.0/24 dev flannel.1 proto 211 scope link "},
		{"no longer direct", []netip.Prefix{netip.MustParsePrefix("10.42.99.1/32")}, []dataplane.Peer{tunnel, taken},
			pods + "10.42.7.0/24 dev flannel.1 proto 211 scope link \n" + foreign},
		{"one again", nil, []dataplane.Peer{tunnel}, "10.42.0.0/16 dev flannel.1 proto 211 scope link metric 1048576 \n" + pods + foreign},
	} {
		w.Underlay, w.Peers = step.underlay, step.peers
		var err error
		h.Must(func() error { _, err = d.Sync(t.Context(), w); return nil })
		peers, rest := dataplane.PeerErrors(err)
		if rest != nil {
			t.Errorf("%s: %v", step.name, rest)
		}
		for _, p := range peers {
			if p.Peer.Addr != refused.Addr && !(p.Peer.Addr == taken.Addr && errors.Is(p, rtnl.ErrRouteTaken)) {
				t.Errorf("%s: %v", step.name, p)
			}
		}
		if errors.Is(err, rtnl.ErrRouteTaken) != slices.ContainsFunc(step.peers, func(p dataplane.Peer) bool { return p.Addr == taken.Addr }) {
			t.Errorf("%s: %v", step.name, err)
		}
		got := h.Run("ip", "route", "show", "root", "10.42.0.0/16")
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if _, rest := dataplane.PeerErrors(d.repair()); rest != nil {
			t.Errorf("%s: repair: %v", step.name, rest)
		}
	}
}
