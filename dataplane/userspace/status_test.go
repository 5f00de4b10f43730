package userspace

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// TestStatusAfterSync has a peer that is refused, and a device that cannot be as wanted.
func TestStatusAfterSync(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	w := h.wanted()
	good := testPeer("192.0.2.9", "10.42.9.0/24", encap.MAC{2, 1})
	bad := testPeer("127.0.0.1", "10.42.8.0/24", encap.MAC{2, 1})
	objects := func(device, peers int) []dataplane.ObjectStatus {
		return []dataplane.ObjectStatus{{Kind: "device", Wanted: 1, Have: device}, {Kind: "address", Wanted: 1, Have: device},
			{Kind: "route", Wanted: 1, Have: device}, {Kind: "peer", Wanted: len(w.Peers), Have: peers}}
	}
	for _, step := range []struct {
		peers []dataplane.Peer
		state dataplane.State
		err   string
	}{
		{nil, dataplane.StateOK, ""},
		{[]dataplane.Peer{good, bad}, dataplane.StateDegraded, "127.0.0.1 is not the address of one host"},
		{[]dataplane.Peer{good}, dataplane.StateOK, ""},
	} {
		w.Peers = step.peers
		h.Must(func() error {
			_, err := d.Sync(t.Context(), w)
			if _, rest := dataplane.PeerErrors(err); rest != nil {
				return rest
			}
			return nil
		})
		s := d.Status()
		if s.Name != "userspace" || s.State != step.state || !strings.Contains(s.Err, step.err) || (s.Err == "") != (step.err == "") {
			t.Errorf("%d peers: %+v", len(step.peers), s)
		}
		want := objects(1, min(len(step.peers), 1))
		if d.Offloads().has(Tunnel) { // no superpacket was sent: there is no next hop yet
			want = append(want, dataplane.ObjectStatus{Kind: "uplink", Wanted: 1, Have: 1}, dataplane.ObjectStatus{Kind: "uplink next hop"})
		}
		if !slices.Equal(s.Objects, want) {
			t.Errorf("%d peers: objects %+v, want %+v", len(step.peers), s.Objects, want)
		}
	}
	l := h.link()
	h.Must(func() error { return netlink.LinkDel(l) })
	if _, err := d.Sync(t.Context(), w); !errors.Is(err, rtnl.ErrNotFound) {
		t.Errorf("Sync without a device: %v", err)
	}
	if s := d.Status(); s.State != dataplane.StateFailed || s.Objects[0].Have != 0 {
		t.Errorf("without a device: %+v", s)
	}
}

// TestRepairsAreReported has somebody delete an address and a route, add another address, and change
// the MTU: each repair is counted and is one line in the log, and nothing else is.
func TestRepairsAreReported(t *testing.T) {
	h := newHost(t)
	var log bytes.Buffer
	var d *Dataplane
	h.Must(func() (err error) {
		cfg := h.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d, err = Open(cfg)
		return err
	})
	defer d.Close()
	h.sync(d)
	log.Reset()
	if err := d.repair(); err != nil || log.Len() > 0 {
		t.Errorf("repaired what was right: %v, %s", err, log.String())
	}
	base := netip.PrefixFrom(h.subnet.Addr(), 32).String()
	h.Run("ip", "link", "set", "flannel.1", "mtu", "1400")
	h.Run("ip", "addr", "add", "10.42.77.1/32", "dev", "flannel.1")
	h.Run("ip", "addr", "del", base, "dev", "flannel.1")
	h.Run("ip", "route", "del", testNetwork.String())
	if err := d.repair(); err != nil {
		t.Fatal(err)
	}
	h.requireSynced()
	for _, change := range []string{
		`change.op=replace change.kind=device change.key=flannel.1 change.was="mtu 1400" change.is="mtu 1450"`,
		"change.op=add change.kind=address change.key=" + base,
		"change.op=delete change.kind=address change.key=10.42.77.1/32",
		"change.op=add change.kind=route change.key=" + testNetwork.String(),
	} {
		if n := strings.Count(log.String(), change); n != 1 {
			t.Errorf("%d lines about %s in\n%s", n, change, log.String())
		}
	}
	repairs := map[string]uint64{"device": 1, "address": 2, "route": 1, "peer": 0}
	for _, o := range d.Status().Objects {
		if o.Repairs != repairs[o.Kind] || o.LastRepair.IsZero() != (o.Repairs == 0) {
			t.Errorf("counted %+v, want %d repairs", o, repairs[o.Kind])
		}
	}
}
