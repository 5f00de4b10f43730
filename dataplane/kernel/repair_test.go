package kernel

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// objectOf returns the status of one kind.
func objectOf(t *testing.T, s dataplane.PartStatus, kind string) dataplane.ObjectStatus {
	t.Helper()
	for _, o := range s.Objects {
		if o.Kind == kind {
			return o
		}
	}
	t.Fatalf("no %s in %+v", kind, s)
	return dataplane.ObjectStatus{}
}

// Each repair is counted by kind and names its object in the log. What Sync is asked to do is
// no repair.
func TestRepairsAreCountedAndLogged(t *testing.T) {
	for _, tc := range []struct {
		name, command string
		kind          string
		line          string // part of the log
	}{
		{"route", "ip route del 10.5.2.0/24", kindRoute, "op=add change.kind=route change.key=10.5.2.0/24"},
		{"neighbour", "ip neigh replace 10.5.3.0 lladdr 0e:00:00:00:00:99 dev flannel.1 nud permanent", kindNeighbour,
			"op=replace change.kind=neighbour change.key=10.5.3.0 change.was=0e:00:00:00:00:99 change.is=0e:00:00:00:00:0c"},
		{"foreign neighbour", "ip neigh add 10.5.99.0 lladdr 0e:00:00:00:00:99 dev flannel.1 nud permanent", kindNeighbour,
			"op=delete change.kind=neighbour change.key=10.5.99.0 change.was=0e:00:00:00:00:99"},
		{"FDB entry", "bridge fdb del 0e:00:00:00:00:0b dev flannel.1", kindFDB, "op=add change.kind=fdb change.key=0e:00:00:00:00:0b"},
		{"nexthop", "ip nexthop flush", kindNexthop, "op=add change.kind=nexthop"},
		{"MTU", "ip link set flannel.1 mtu 1300", kindDevice, "op=replace change.kind=device change.key=flannel.1"},
		{"device", "ip link del flannel.1", kindDevice, "op=add change.kind=device change.key=flannel.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			log := new(netnstest.Log)
			h := newHosts(t, 1)[0]
			h.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
			h.open()
			h.sync(wanted(peerC))
			h.sync(wanted(peerB, peerC))
			h.run()
			before := h.dp.Status()
			for _, o := range before.Objects {
				if o.Repairs != 0 || o.Have != o.Wanted || o.Wanted == 0 {
					t.Errorf("before: %+v", o)
				}
			}
			if before.State != dataplane.StateOK || before.Name != "kernel" {
				t.Errorf("before: %+v", before)
			}
			args := strings.Fields(tc.command)
			h.Run(args[0], args[1:]...)
			h.await(wanted(peerB, peerC), 2*time.Second)
			for deadline := time.Now().Add(netnstest.Within(2 * time.Second)); objectOf(t, h.dp.Status(), tc.kind).Repairs == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("not counted: %+v", h.dp.Status())
				}
			}
			if !strings.Contains(log.String(), tc.line) {
				t.Errorf("want %s in\n%s", tc.line, log)
			}
		})
	}
}

// A refused peer makes the part degraded, and is not counted as there.
func TestStatusOfRefusedPeers(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.Run("ip", "route", "add", "10.5.2.0/24", "via", "192.0.2.1", "dev", "eth0")
	if _, err := h.dp.Sync(t.Context(), wanted(peerB, peerC)); !onlyPeers(err) || err == nil {
		t.Errorf("got %v", err)
	}
	s := h.dp.Status()
	if s.State != dataplane.StateDegraded || !strings.Contains(s.Err, "10.5.2.0/24") {
		t.Errorf("got %+v", s)
	}
	if o := objectOf(t, s, kindRoute); o.Wanted != 3 || o.Have != 2 { // peerC has two
		t.Errorf("got %+v", o)
	}
}
