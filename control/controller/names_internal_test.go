package controller

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestStatusFollowsNames: a peer has the name of the lease's node, which may become another one without anything else of it.
func TestStatusFollowsNames(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/16"}`))
	if err != nil {
		t.Fatal(err)
	}
	of := func(i byte, name string) control.Lease {
		public := netip.AddrFrom4([4]byte{192, 168, 0, i})
		return control.Lease{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, i, 0}), 24), PublicIP: public, BackendType: control.BackendVXLAN,
			Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(i), Facts: control.NodeFacts{}.WithName(name)}
	}
	f := newFollower(New(Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler)}))
	f.c.setLease(of(1, ""), func(*Stats) {})
	refused := of(3, "")
	refused.Backend.VNI = 7
	for _, name := range []string{"", "n2", "n2b"} {
		refused.Facts = refused.Facts.WithName("not-" + name)
		f.apply(t.Context(), []control.Update{{Reset: true, Leases: []control.Lease{of(1, ""), of(2, name), refused}}})
		f.sync(t.Context())
		s := f.c.Status()
		if len(s.Peers) != 2 || s.Peers[0].Name != name || s.Peers[1].Name != "not-"+name || s.Rejected[0].Name != "not-"+name {
			t.Errorf("the peer %q and the refused one have the status %+v, rejected %+v", name, s.Peers, s.Rejected)
		}
	}
	if syncs := f.c.Status().Stats.Syncs; syncs != 1 {
		t.Errorf("%d syncs, want one", syncs)
	}
}

// TestContestIsTold: that an older lease has the own subnet is an error of its own, which other lines do not push out, and so is its end told.
func TestContestIsTold(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/16"}`))
	if err != nil {
		t.Fatal(err)
	}
	of := func(i byte, subnet string, age int64) control.Lease {
		public := netip.AddrFrom4([4]byte{192, 168, 0, i})
		return control.Lease{Subnet: netip.MustParsePrefix(subnet), PublicIP: public, BackendType: control.BackendVXLAN,
			Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: age}
	}
	var log bytes.Buffer
	f := newFollower(New(Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Fix: func(err error) string { return "mend " + err.(*control.EntryError).Name }}))
	own, thief := of(1, "10.0.1.0/24", 9), of(2, "10.0.1.0/24", 1)
	thief.Claimant, thief.Facts = "thief", thief.Facts.WithName("thief")
	f.c.setLease(own, func(*Stats) {})
	u := control.Update{Reset: true, Leases: []control.Lease{own, thief}}
	for i := range byte(200) { // more lines than one kind may have
		junk := of(10+i, "10.0.200.0/24", 2)
		junk.Backend.VNI, junk.Claimant = 7, string(rune('a'+i%26))+string(rune('a'+i/26))
		u.Leases = append(u.Leases, junk)
	}
	f.apply(t.Context(), []control.Update{u})
	f.sync(t.Context())
	f.apply(t.Context(), []control.Update{{Deleted: []string{thief.Key()}}})
	f.sync(t.Context())
	for _, want := range []string{
		`level=ERROR msg="an older lease has the subnet of this node: pods here cannot be reached" subnet=10.0.1.0/24 node=thief err="subnet 10.0.1.0/24 overlaps`,
		`fix="mend thief"`, `level=INFO msg="no older lease has the subnet of this node any more"`,
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
}

// TestFixOfKeys: what to do about an entry may name its key only if that says subnets, as it stands in the store.
func TestFixOfKeys(t *testing.T) {
	t.Parallel()
	f := newFollower(New(Config{Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler),
		Fix: func(err error) string { return "mend " + err.(*control.EntryError).Key }}))
	for key, want := range map[string]string{
		"10.5.2.0-24": "10.5.2.0-24", "10.5.2.0-24&fd10::-64": "10.5.2.0-24&fd10::-64", "0.0.0.0-0&fd10::-64": "0.0.0.0-0&fd10::-64",
		"10.5.2.0-24\x00": "", "10.5.2.0-24;reboot": "", "10.5.02.0-24": "", "10.5.2.0-24@n2": "", "$(reboot)": "",
	} {
		if e := f.withFix(EntryStatus{Key: "10.5.9.0-24"}, key, errors.New("refused")); e.Fix != "mend "+want {
			t.Errorf("key %q: %q", key, e.Fix)
		}
	}
}
