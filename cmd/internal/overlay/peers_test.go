package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// faulty is a dataplane that has that status.
type faulty struct {
	carrying
	status *dataplane.PartStatus
}

func (f faulty) Status() dataplane.PartStatus { return *f.status }

// TestMarkFaults: a peer that the dataplane has lost since the last Sync has failed, and one that it has got back
// has not. What the controller published is not changed.
func TestMarkFaults(t *testing.T) {
	at, vtep := time.Unix(1000, 0), netip.MustParseAddr("192.0.2.2")
	peer := func(subnet string, state controller.PeerState) controller.PeerStatus {
		return controller.PeerStatus{Subnet: netip.MustParsePrefix(subnet), VTEP: vtep, State: state}
	}
	status := &dataplane.PartStatus{State: dataplane.StateOK}
	o := &Overlay{forward: NewForwarding(faulty{carrying{}, status}, fit.Kernel, nil, func() {})}
	published := []controller.PeerStatus{peer("10.5.1.0/24", controller.PeerUp), peer("10.5.2.0/24", controller.PeerKept),
		peer("10.5.3.0/24", controller.PeerFailed), peer("10.5.4.0/24", controller.PeerRefused)}
	before := slices.Clone(published)
	expect := func(what, want string) {
		t.Helper()
		var got []string
		for _, p := range o.markFaults(published) {
			got = append(got, fmt.Sprint(p.State, p.Reason))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, want %s", what, got, want)
		}
	}
	expect("nothing wrong", "[up kept up refused]")
	status.State = dataplane.StateFailed
	expect("wrong as a whole", "[up kept failed refused]")
	var subnets []netip.Prefix
	for _, p := range published[1:] {
		subnets = append(subnets, p.Subnet)
	}
	for _, why := range []error{dataplane.ErrRouteTaken, errors.New("refused")} {
		status.State, status.Peers = dataplane.StateDegraded, []dataplane.PeerFault{{
			PeerError: &dataplane.PeerError{Peer: dataplane.Peer{VTEP: dataplane.VTEP{Addr: vtep}, Subnets: subnets}, Err: why}, Since: at}}
		reason := map[bool]string{true: "route_taken", false: "not_programmed"}[why == dataplane.ErrRouteTaken]
		expect(why.Error(), fmt.Sprintf("[up failed%[1]s failed%[1]s refused]", reason))
	}
	if p := o.markFaults(published)[1]; !p.Since.Equal(at) || p.Err != "refused" {
		t.Errorf("got %+v", p)
	}
	if !slices.Equal(published, before) {
		t.Error("what was published has changed")
	}
}
