package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func TestParseDemoLease(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       demoLease
		err        string
	}{
		{"whole file", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
			demoLease{netip.MustParsePrefix("10.244.7.1/24"), 1450}, ""},
		{"empty", "", demoLease{}, "FLANNEL_SUBNET"},
		{"no room for a pod", "FLANNEL_SUBNET=10.244.7.1/31\nFLANNEL_MTU=1450\n", demoLease{}, "FLANNEL_SUBNET"},
		{"no MTU", "FLANNEL_SUBNET=10.244.7.1/24\n", demoLease{}, "FLANNEL_MTU"},
		{"MTU of nothing", "FLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=0\n", demoLease{}, "FLANNEL_MTU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseDemoLease(tt.text)
			if got != tt.want || (err != nil) != (tt.err != "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func TestDemoDaemonIsRecognised(t *testing.T) {
	args := func(a ...string) string { return strings.Join(a, "\x00") + "\x00" }
	const own, file = "/src/bin/overlayd", "/tmp/overlayd-demo-12/host1/subnet.env"
	for _, tt := range []struct {
		name, cmdline, exe string
		want               bool
	}{
		{"daemon", args("overlayd", "--iface", "eth0", "--subnet-file", file), own, true},
		{"rebuilt since", args("overlayd", "--subnet-file", file), own + " (deleted)", true},
		{"installed elsewhere", args("overlayd", "--subnet-file", file), "/usr/bin/overlayd", true},
		{"other program", args("grep", "--subnet-file", file), "/usr/bin/grep", false},
		{"real daemon", args("overlayd", "--subnet-file", "/run/flannel/subnet.env"), own, false},
		{"no value", args("overlayd", "--subnet-file"), own, false},
		{"no argument", "", own, false},
		{"kernel thread", "", "", false},
	} {
		if got := isDemoDaemon(tt.cmdline, tt.exe, own); got != tt.want {
			t.Errorf("%s: recognised %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestDemoEnv(t *testing.T) {
	got := demoEnv([]string{"PATH=/bin", "OVERLAYD_IFACE=eth7", "FLANNELD_PUBLIC_IP=192.0.2.1", "NOTIFY_SOCKET=/run/s", "OVERLAYD_OTHER=1"})
	if want := []string{"PATH=/bin", "OVERLAYD_OTHER=1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []time.Duration
		want time.Duration
	}{{nil, 0}, {[]time.Duration{7}, 7}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{4, 1, 2, 100}, 3}} {
		if got := median(tt.in); got != tt.want {
			t.Errorf("median is %d, want %d", got, tt.want)
		}
	}
}

func TestDemoTableAndFailure(t *testing.T) {
	ms := time.Millisecond
	results := []demoResult{
		{demoPair: demoPair{from: "pod1", to: "pod2", path: "kernel → userspace"}, ping: demoPing{20, 0, ms / 4}, gbit: 5.128},
		{demoPair: demoPair{from: "host1", to: "pod3", path: "kernel → userspace"}, ping: demoPing{20, 1, 12 * ms}},
	}
	want := `  pair          dataplanes                RTT  Gbit/s  loss
  pod1 → pod2   kernel → userspace   0.250 ms    5.13   0 %
  host1 → pod3  kernel → userspace  12.000 ms       –   5 %
`
	if got := demoTable(results); got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
	if err := demoFailure(results); err != nil {
		t.Errorf("one lost ping in twenty fails: %v", err)
	}
	results[1].ping.lost = 3
	results = append(results, demoResult{demoPair: demoPair{from: "pod3", to: "pod1", path: "userspace → kernel"}, err: errors.New("unreachable")})
	err := demoFailure(results)
	for _, part := range []string{"2 of 3 pairs failed", "host1 → pod3 (kernel → userspace): 3 of 20 pings", "pod3 → pod1 (userspace → kernel): unreachable"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
	if lines := strings.Split(demoTable(results), "\n"); !strings.HasSuffix(lines[3], "–       –  100 %") {
		t.Errorf("line of an unreachable pair: %q", lines[3])
	}
}

func TestTail(t *testing.T) {
	if got := tail("a\nb\nc", 2); got != "  b\n  c\n" {
		t.Errorf("got %q", got)
	}
	if got := tail("", 2); got != "" {
		t.Errorf("got %q", got)
	}
}

// A receiver must notice each way in which a stream can differ.
func TestReceivePattern(t *testing.T) {
	pattern := newPattern()
	var whole bytes.Buffer
	for sent := int64(0); sent < 3*streamPeriod; sent += streamBlock {
		off := sent % streamPeriod
		whole.Write(pattern[off : off+streamBlock])
	}
	right := whole.Bytes()
	if n, _, err := receivePattern(bytes.NewReader(right), pattern); err != nil || n != int64(len(right)) {
		t.Fatalf("right stream: %d bytes, %v", n, err)
	}
	flipped := bytes.Clone(right)
	flipped[2*streamPeriod+5] ^= 1
	lost := append(bytes.Clone(right[:streamPeriod]), right[streamPeriod+1448:]...)
	doubled := append(bytes.Clone(right[:2896]), right[1448:]...)
	for name, wrong := range map[string][]byte{"flipped bit": flipped, "segment lost": lost, "segment doubled": doubled, "nothing": nil} {
		if _, _, err := receivePattern(bytes.NewReader(wrong), pattern); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	if _, _, err := receivePattern(io.MultiReader(bytes.NewReader(right), errReader{}), pattern); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error of the connection: got %v", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, os.ErrClosed }

// The measurements of the demo over a plain veth pair.
func TestDemoMeasuresNamespaces(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	netnstest.Link(a, "eth0", b, "eth0")
	a.Addr("eth0", "192.0.2.1/24")
	b.Addr("eth0", "192.0.2.2/24")
	from, to := &demoNS{name: "a", handle: a.Handle()}, &demoNS{name: "b", handle: b.Handle()}
	addr := netip.MustParseAddr("192.0.2.2")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := awaitPing(ctx, from, addr); err != nil {
		t.Fatal(err)
	}
	if p, err := pingTimes(ctx, from, addr, 5); err != nil || p.sent != 5 || p.lost != 0 || p.rtt <= 0 {
		t.Errorf("ping: %+v, %v", p, err)
	}
	if gbit, err := stream(ctx, from, to, addr, 50*time.Millisecond); err != nil || gbit <= 0 {
		t.Errorf("stream: %f Gbit/s, %v", gbit, err)
	}
}

// A pair that does not answer ends with the cause of its context.
func TestDemoUnreachable(t *testing.T) {
	a := netnstest.New(t)
	from := &demoNS{name: "a", handle: a.Handle()}
	cause := errors.New("waited long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	if err := awaitPing(ctx, from, netip.MustParseAddr("192.0.2.9")); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	to := &demoNS{name: "a", handle: a.Handle()}
	if _, err := stream(ctx, from, to, netip.MustParseAddr("192.0.2.9"), time.Second); err == nil {
		t.Error("streamed to an address that nobody has")
	}
}
