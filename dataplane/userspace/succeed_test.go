package userspace

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// dummySuccessor is a host with a predecessor.
type dummySuccessor struct {
	dummyHost
	old []string
	err error // of settle
}

func (h *dummySuccessor) predecessors() []string       { return h.old }
func (h *dummySuccessor) check([]netip.AddrPort) error { return nil }
func (h *dummySuccessor) prepare(int) error            { return nil }
func (h *dummySuccessor) stop(int) error               { return nil }
func (h *dummySuccessor) queues() []queue              { return []queue{&h.dummyHost} }
func (h *dummySuccessor) settle([]netip.Prefix) error {
	if h.err == nil {
		h.old = nil
	}
	return h.err
}

// openSuccessor opens a dataplane of a dummySuccessor on a port that opens carriers by open.
func openSuccessor(t *testing.T, h *dummySuccessor, opener carrier.Opener) (*Dataplane, *Port) {
	t.Helper()
	addr := netip.MustParseAddr("192.0.2.1")
	cfg := Config{Log: slog.New(slog.DiscardHandler), VNI: testVNI, Port: testPort, MTU: testMTU, Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}}
	port := newPort(cfg, opener)
	h.old = []string{"flannel.1"}
	d, err := newDataplane(cfg, h, port)
	if err != nil {
		t.Fatal(err)
	}
	return d, port
}

// TestStatusUntilSettled: as long as a predecessor has its place, the status says so, whatever is repaired
// meanwhile.
func TestStatusUntilSettled(t *testing.T) {
	h := &dummySuccessor{err: errors.New("the device is stuck")}
	d, _ := openSuccessor(t, h, new(dummyCarrier).opener(carrier.Family4))
	defer d.Close()
	w := dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetA}}
	if _, err := d.Sync(t.Context(), w); !errors.Is(err, h.err) {
		t.Errorf("Sync: %v", err)
	}
	for range 2 {
		if s := d.Status(); s.State != dataplane.StateFailed || !strings.Contains(s.Err, h.err.Error()) {
			t.Errorf("status %+v", s)
		}
		if err := d.repair(); err != nil {
			t.Error(err)
		}
	}
	h.err = nil
	if _, err := d.Sync(t.Context(), w); err != nil || d.Status().State != dataplane.StateOK {
		t.Errorf("Sync: %v, status %+v", err, d.Status())
	}
}

// TestEndedPortSucceedsNobody: a port that has ended opens no carriers, and the predecessor keeps the traffic.
func TestEndedPortSucceedsNobody(t *testing.T) {
	opened := 0
	c := new(dummyCarrier).opener(carrier.Family4)
	c.OpenBeside = func(int) (carrier.Carrier, error) { opened++; return new(dummyCarrier), nil }
	var h dummySuccessor
	d, port := openSuccessor(t, &h, c)
	defer d.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := port.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Sync(t.Context(), dataplane.Wanted{MTU: testMTU}); !errors.Is(err, errPortClosed) || opened > 0 || h.wanted.MTU != 0 {
		t.Errorf("Sync: %v; %d carriers opened, the host got %+v", err, opened, h.wanted)
	}
}
