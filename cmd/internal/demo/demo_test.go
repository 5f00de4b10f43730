package demo

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
)

func TestDaemonEnv(t *testing.T) {
	got := daemonEnv([]string{"PATH=/bin", "OVERLAYD_IFACE=eth7", "FLANNELD_PUBLIC_IP=192.0.2.1", "NOTIFY_SOCKET=/run/s", "OVERLAYD_OTHER=1"})
	if want := []string{"PATH=/bin", "OVERLAYD_OTHER=1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTableAndFailure(t *testing.T) {
	ms := time.Millisecond
	pair := func(from, to, path string) testbed.Pair { return testbed.Pair{From: from, To: to, Path: path} }
	results := []testbed.Result{
		{Pair: pair("pod1", "pod2", "kernel → userspace"), Ping: testbed.Pinged{Sent: 20, RTT: ms / 4}, Gbit: 5.128},
		{Pair: pair("host1", "pod3", "kernel → userspace"), Ping: testbed.Pinged{Sent: 20, Lost: 1, RTT: 12 * ms}},
	}
	want := `  pair          dataplanes                RTT  Gbit/s  loss
  pod1 → pod2   kernel → userspace   0.250 ms    5.13   0 %
  host1 → pod3  kernel → userspace  12.000 ms       –   5 %
`
	if got := table(results); got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
	if err := failure(results); err != nil {
		t.Errorf("one lost ping in twenty fails: %v", err)
	}
	results[1].Ping.Lost = 3
	results = append(results, testbed.Result{Pair: pair("pod3", "pod1", "userspace → kernel"), Err: errors.New("unreachable")})
	err := failure(results)
	for _, part := range []string{"2 of 3 pairs failed", "host1 → pod3 (kernel → userspace): 3 of 20 pings", "pod3 → pod1 (userspace → kernel): unreachable"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
	if lines := strings.Split(table(results), "\n"); !strings.HasSuffix(lines[3], "–       –  100 %") {
		t.Errorf("line of an unreachable pair: %q", lines[3])
	}
}
