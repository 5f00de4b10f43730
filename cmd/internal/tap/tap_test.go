package tap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	peerB = netip.MustParseAddr("192.0.2.2")
	peerC = netip.MustParseAddr("192.0.2.3")
)

// daemon is a daemon as far as captures see it: a worker, and what is known of the peers.
type daemon struct {
	capture.Hub
	capture.Point
	*admin.Client
	log *netnstest.Log

	mu       sync.Mutex
	networks []status.Network
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	netnstest.RequireRoot(t)
	d := &daemon{log: new(netnstest.Log)}
	peer := func(name, subnet string, vtep netip.Addr, s controller.PeerState) controller.PeerStatus {
		return controller.PeerStatus{Name: name, Subnet: netip.MustParsePrefix(subnet), VTEP: vtep, State: s}
	}
	d.networks = []status.Network{{Mode: modeUserspace, SessionStart: time.Now(), Peers: []controller.PeerStatus{
		peer("host-b", "10.42.2.0/24", peerB, controller.PeerUp), peer("host-c", "10.42.3.0/24", peerC, controller.PeerUp),
		peer("near", "10.42.4.0/24", netip.MustParseAddr("192.0.2.4"), controller.PeerDirect)}}}
	d.Join(1, &d.Point)
	path := filepath.Join(t.TempDir(), "sock")
	s := &Server{Hub: &d.Hub, Hello: stream.Hello{Host: "host-a"}, Networks: d.status, Log: slog.New(slog.NewTextHandler(d.log, nil))}
	a := admin.Start(t.Context(), admin.Config{Path: path, Group: -1, Routes: []admin.Route{s.Route()}, Log: s.Log}, false)
	t.Cleanup(func() {
		d.Hub.Close()
		a.Stop(false)
	})
	d.Client = admin.NewClient(path)
	return d
}

func (d *daemon) status() []status.Network {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.networks
}

// show shows a packet to whoever listens.
func (d *daemon) show(v capture.Verdict, peer netip.Addr, text string) {
	if t := d.Tap(); t != nil {
		t.Show(capture.Meta{Verdict: v, Peer: peer}, []byte(text))
	}
}

// within polls until ok.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// captured is a stream that a test reads.
type captured struct {
	*admin.Stream
	*stream.Reader
}

func (d *daemon) capture(t *testing.T, q stream.Query) captured {
	t.Helper()
	s, err := d.Stream(t.Context(), stream.Path+q.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r, err := stream.NewReader(s)
	if err != nil {
		t.Fatal(err)
	}
	return captured{s, r}
}

// rest reads to the end, and returns what the packets are: verdict, peer, bytes.
func (c captured) rest() (packets []string, err error) {
	for p := (stream.Packet{}); ; {
		if err = c.Next(&p); err != nil {
			return packets, err
		}
		packets = append(packets, p.Verdict+" "+p.Peer+" "+string(p.Data))
	}
}

// TestQueries: a client gets what it asks for, and the last of it when it wants no more.
func TestQueries(t *testing.T) {
	d := newDaemon(t)
	all, few := d.capture(t, stream.Query{Snap: 15}), d.capture(t, stream.Query{Count: 2})
	ofB, drops := d.capture(t, stream.Query{Peer: "10.42.2.9"}), d.capture(t, stream.Query{Drops: true})
	d.show(capture.Sent, peerB, "one")
	d.show(capture.Received, peerC, "two")
	d.show(capture.Dropped(dataplane.DropNoRoute), netip.Addr{}, "three")
	d.show(capture.Dropped(dataplane.DropTooBig), peerB, "four")
	for name, c := range map[string]struct {
		of   captured
		want string
	}{
		"all":   {all, "tx host-b o,rx host-c t,drop:no_route  t,drop:too_big host-b f"},
		"few":   {few, "tx host-b one,rx host-c two"},
		"of B":  {ofB, "tx host-b one,drop:too_big host-b four"},
		"drops": {drops, "drop:no_route  three,drop:too_big host-b four"},
	} {
		if name != "few" {
			if err := c.of.Stop(); err != nil {
				t.Error(err)
			}
		}
		if got, err := c.of.rest(); err != io.EOF || strings.Join(got, ",") != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	within(t, "all captures have ended", func() bool { return d.Captures() == 0 })
	within(t, "the log says so", func() bool { return strings.Count(d.log.String(), "a capture ends") == 4 })
	if log := d.log.String(); !strings.Contains(log, "packets=2 lost=0") || !strings.Contains(log, "why=\"the client wanted no more\"") {
		t.Errorf("log:\n%s", log)
	}
}

// TestNamesFollow: a peer that comes later has its name.
func TestNamesFollow(t *testing.T) {
	d := newDaemon(t)
	s := &session{Server: &Server{Networks: d.status}, names: stream.Names{}}
	if b := s.update(s.names, nil); len(b) == 0 || s.names[peerB] != "host-b" {
		t.Errorf("%d bytes, names %v", len(b), s.names)
	}
	d.networks[0].Peers[0].Name = "renamed"
	if b := s.update(s.names, nil); !bytes.Contains(b, []byte("192.0.2.2 renamed\n")) || bytes.Contains(b, []byte("host-c")) {
		t.Errorf("then %q", b)
	}
}

// TestRefusals: what cannot be is one sentence that says why.
func TestRefusals(t *testing.T) {
	d := newDaemon(t)
	ask := func(q string) error {
		s, err := d.Stream(t.Context(), stream.Path+q)
		if err == nil {
			s.Close()
		}
		return err
	}
	for q, c := range map[string]struct {
		is   error
		says string
	}{
		"?count=-1":    {admin.ErrRequest, `count "-1"`},
		"?peer=nobody": {admin.ErrRequest, `peer "nobody": the daemon knows no such peer`},
		"?peer=near":   {admin.ErrRequest, "direct route"},
	} {
		if err := ask(q); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", q, err)
		}
	}
	for range 4 {
		d.capture(t, stream.Query{})
	}
	if err := ask(""); !errors.Is(err, admin.ErrNotNow) || !strings.Contains(err.Error(), "as many captures") {
		t.Errorf("a fifth: %v", err)
	}
	for mode, says := range map[string]string{modeKernel: "tcpdump -ni flannel.7", "": "not vxlan"} {
		d.mu.Lock()
		d.networks = []status.Network{{Mode: mode, VNI: 7, Port: 8472, SessionStart: time.Now()}}
		d.mu.Unlock()
		if err := ask(""); !errors.Is(err, admin.ErrNotNow) || !strings.Contains(err.Error(), says) {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	if err := ask("/nothing"); !errors.Is(err, admin.ErrVersion) {
		t.Errorf("an older daemon: %v", err)
	}
}

// TestSlowReader: who reads too slowly loses packets, and learns how many.
func TestSlowReader(t *testing.T) {
	d := newDaemon(t)
	c := d.capture(t, stream.Query{})
	packet, shown := strings.Repeat("x", 1400), 0
	for range 100_000 { // more than the socket, the ring and the server take
		d.show(capture.Sent, peerB, packet)
		shown++
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	got, err := c.rest()
	if err != io.EOF || c.Lost == 0 || len(got)+int(c.Lost) != shown {
		t.Errorf("%d packets and %d lost of %d: %v", len(got), c.Lost, shown, err)
	}
}

// TestClientGoes: nothing of a client that goes without a word is left, whether packets come or not.
func TestClientGoes(t *testing.T) {
	d := newDaemon(t)
	quiet, busy := d.capture(t, stream.Query{}), d.capture(t, stream.Query{})
	quiet.Close()
	within(t, "the quiet one is gone", func() bool { return d.Captures() == 1 })
	stop := make(chan struct{})
	var worker sync.WaitGroup
	worker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				d.show(capture.Sent, peerB, "packet")
			}
		}
	})
	if err := busy.Next(new(stream.Packet)); err != nil {
		t.Error(err)
	}
	busy.Close()
	within(t, "the busy one is gone", func() bool { return d.Captures() == 0 })
	close(stop)
	worker.Wait()
	within(t, "the log says so", func() bool { return strings.Count(d.log.String(), "a capture ends") == 2 })
}

// TestDaemonEnds: its clients get the rest and are told.
func TestDaemonEnds(t *testing.T) {
	d := newDaemon(t)
	c := d.capture(t, stream.Query{})
	d.show(capture.Sent, peerB, "last")
	d.Hub.Close()
	got, err := c.rest()
	if !errors.Is(err, stream.ErrEnd) || len(got) != 1 || !strings.Contains(err.Error(), "the daemon is about to end") {
		t.Errorf("%q, %v", got, err)
	}
}

// run runs a Client with a program of the shell. began is called when there is a stream.
func (d *daemon) run(ctx context.Context, t *testing.T, script string, began func()) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	open := func() (*os.File, error) {
		began()
		return os.Create(path)
	}
	c := Client{Admin: d.Client, Program: "/bin/sh", Args: []string{"-c", script}, Open: open}
	err := c.Run(ctx)
	out, _ := os.ReadFile(path)
	return string(out), err
}

// TestRun: the program gets the whole stream, and its end ends the rest, also if no packet comes.
func TestRun(t *testing.T) {
	d := newDaemon(t)
	ctx, cancel := context.WithCancel(t.Context())
	out, err := d.run(ctx, t, "exec cat", func() {
		d.show(capture.Sent, peerB, "packet")
		cancel()
	})
	if err != nil {
		t.Error(err)
	}
	r, err := stream.NewReader(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (captured{Reader: r}).rest(); err != io.EOF || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := d.run(t.Context(), t, "exit 1", func() {}); !errors.Is(err, ErrSaid) {
		t.Errorf("a program that fails: %v", err)
	}
	if _, err := d.run(t.Context(), t, "kill -PIPE $$", func() {}); !errors.Is(err, ErrUnread) {
		t.Errorf("a program whose reader goes: %v", err)
	}
	if _, err := d.run(t.Context(), t, "kill -KILL $$", func() {}); err == nil || !strings.Contains(err.Error(), "overlayd-capture: signal: killed") {
		t.Errorf("a program that is killed: %v", err)
	}
	if _, err := d.run(t.Context(), t, "exit 2", func() {}); err == nil || errors.Is(err, ErrSaid) {
		t.Errorf("a program that crashes: %v", err)
	}
	if _, err := d.run(ctx, t, "exec cat", func() { t.Error("there is a stream") }); err != nil {
		t.Errorf("a signal before the answer: %v", err)
	}
	within(t, "all captures have ended", func() bool { return d.Captures() == 0 })
}

// TestFindProgram: without it, the sentence says where it was looked for.
func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := FindProgram(); !errors.Is(err, ErrNoProgram) || !strings.Contains(err.Error(), "nor in PATH") {
		t.Errorf("without it: %v", err)
	}
	path := filepath.Join(dir, Program)
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := FindProgram(); err != nil || got != path {
		t.Errorf("in PATH: %q, %v", got, err)
	}
}
