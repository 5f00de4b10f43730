package testbed

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// newBed makes n hosts that the test takes down, and checks that nothing is left.
func newBed(t *testing.T, prefix Prefix, n int) *Testbed {
	t.Helper()
	netnstest.RequireRoot(t)
	bed, err := New(prefix)
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if removed, err := prefix.Remove(); removed != "" || err != nil {
			t.Errorf("Close left %q, %v", removed, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := bed.AddHost(); err != nil {
			t.Fatal(err)
		}
	}
	return bed
}

// Ping and Stream measure hosts on one underlay.
func TestHostsMeasureEachOther(t *testing.T) {
	bed := newBed(t, "overlayd-bedtest-", 2)
	from, to := bed.Hosts[0], bed.Hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	results := Reach(ctx, []Pair{{From: from.Name, To: to.Name, FromNS: from.NS, ToNS: to.NS, Addr: to.Addr, TCP: true}})
	MeasurePing(ctx, results, Pings{Count: 5})
	MeasureTCP(ctx, results, 50*time.Millisecond)
	r := results[0]
	if r.Err != nil || r.Ping.Sent != 5 || r.Ping.Lost != 0 || r.Ping.RTT <= 0 || r.Gbit <= 0 {
		t.Errorf("got %+v", r)
	}
}

// What cannot be reached ends with the cause of its context, and a series of pings
// ends when too many are lost.
func TestUnreachable(t *testing.T) {
	bed := newBed(t, "overlayd-unreachtest-", 1)
	from, nobody := bed.Hosts[0].NS, netip.MustParseAddr("192.0.2.9")
	cause := errors.New("waited long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	for _, to := range []netip.Addr{nobody, netip.MustParseAddr("198.51.100.1")} { // no neighbour, no route
		if err := from.AwaitPing(ctx, to); !errors.Is(err, cause) {
			t.Errorf("%s: got %v", to, err)
		}
	}
	if got, err := from.Ping(ctx, nobody, Pings{Count: 5}); !errors.Is(err, cause) || got.Sent != 0 {
		t.Errorf("pings after the end: %+v, %v", got, err)
	}
	if _, err := Stream(t.Context(), from, from, nobody, time.Second); err == nil {
		t.Error("streamed to an address that nobody has")
	}
}

// The end of the context ends a stream long before its time.
func TestStreamEndsWithItsContext(t *testing.T) {
	bed := newBed(t, "overlayd-streamtest-", 2)
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	if _, err := Stream(ctx, bed.Hosts[0].NS, bed.Hosts[1].NS, bed.Hosts[1].Addr, time.Hour); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// A daemon that ends before it is ready is an error with its state; its log is kept.
func TestDaemonThatEndsIsNotReady(t *testing.T) {
	bed := newBed(t, "overlayd-daemontest-", 1)
	h := bed.Hosts[0]
	program := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho out of order; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(program, nil); err != nil {
		t.Fatal(err)
	}
	err := h.AwaitReady(t.Context())
	if err == nil || !strings.Contains(err.Error(), "broken ended before it was ready (exit status 3)") {
		t.Errorf("got %v", err)
	}
	if got := h.Logs(3); got != "  out of order\n" {
		t.Errorf("log: %q", got)
	}
}

// A daemon that is ready gets a pod, which its own host reaches; Close stops it.
func TestPodBehindAHost(t *testing.T) {
	bed := newBed(t, "overlayd-podtest-", 1)
	h := bed.Hosts[0]
	program := filepath.Join(t.TempDir(), "ready")
	script := "#!/bin/sh\ntrap 'exit 0' TERM\nprintf 'FLANNEL_SUBNET=10.244.7.1/24\\nFLANNEL_MTU=1400\\n' > \"$2.part\"; mv \"$2.part\" \"$2\"\nwhile :; do sleep 0.05; done\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(program, os.Environ()); err != nil {
		t.Fatal(err)
	}
	if err := h.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.AddPod(); err != nil {
		t.Fatal(err)
	}
	l, err := h.Pod.Link("eth0")
	if err != nil || l.Attrs().MTU != 1400 {
		t.Errorf("link of the pod: %+v, %v", l, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.NS.AwaitPing(ctx, h.Lease.Pod()); err != nil {
		t.Error(err)
	}
}

// Every ordered pair of pods, then every host with every pod that is not its own.
func TestPairs(t *testing.T) {
	bed := &Testbed{}
	for i := range 3 {
		bed.Hosts = append(bed.Hosts, &Host{Name: "host" + string(rune('1'+i)), num: i + 1, Dataplane: "d" + string(rune('1'+i))})
	}
	var got []string
	for _, p := range bed.Pairs() {
		got = append(got, p.From+">"+p.To+" "+p.Path)
	}
	if len(got) != 12 || got[0] != "pod1>pod2 d1 → d2" || got[5] != "pod3>pod2 d3 → d2" || got[6] != "host1>pod2 d1 → d2" {
		t.Errorf("got %q", got)
	}
}
