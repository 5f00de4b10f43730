package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// asDrained makes the test binary hold a subnet file until SIGUSR1, as a daemon does; before it
// ends it removes the files whose names have "good" in them, and notes that it has drained in those that have "noted".
const asDrained = "OVERLAYD_TEST_DRAINED"

func holdUntilDrained(files string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	var err error
	claims := map[string]*nodefile.File{}
	for file := range strings.SplitSeq(files, ",") {
		f, cerr := nodefile.Claim(file)
		claims[file], err = f, errors.Join(err, cerr)
	}
	fmt.Println(os.Getpid(), err)
	go func() {
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	<-signals
	for file := range strings.SplitSeq(files, ",") {
		if strings.Contains(file, "good") {
			os.Remove(file)
		}
		if strings.Contains(file, "noted") {
			claims[file].Drained()
		}
	}
}

// TestDrainOfDaemon: the running daemon is told to drain, and what it leaves shows whether it did.
func TestDrainOfDaemon(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		want  error
	}{
		{"given back", []string{"good"}, nil},
		{"several networks", []string{"good1", "good2"}, nil},
		{"not given back", []string{"bad"}, ErrNotGivenBack},
		{"one of several not given back", []string{"good", "bad"}, ErrNotGivenBack},
		{"given back without a subnet file", []string{"noted-none"}, nil},
		{"not given back without a subnet file", []string{"bad-none"}, ErrNotGivenBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			dir := t.TempDir()
			var files []string
			for _, name := range c.files {
				file := filepath.Join(dir, name+".env")
				files = append(files, file)
				if strings.HasSuffix(name, "-none") {
					continue
				}
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if w.cfg.SubnetFile = files[0]; len(files) > 1 {
				w.several()
				w.cfg.SubnetDir = dir
			}
			line, _ := processtest.Run(t, asDrained, strings.Join(files, ","))
			d, err := Drain(t.Context(), w.cfg)
			if !errors.Is(err, c.want) || line != fmt.Sprintf("%d <nil>", d.PID) || len(d.Leases) > 0 {
				t.Errorf("daemon %q: %+v, %v; want %v", line, d, err, c.want)
			}
			if len(w.stores) > 0 {
				t.Error("the store was asked beside a running daemon")
			}
		})
	}
}

// TestDrainInTime: a daemon that does not end is named when the time is over.
func TestDrainInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line, _ := processtest.Run(t, asHolder, w.cfg.SubnetFile)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Drain(ctx, w.cfg)
	pid, _, _ := strings.Cut(line, " ")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not stopped in time (pid "+pid+")") {
		t.Errorf("got %v, want pid %s", err, pid)
	}
}

// living is a store that knows who lives.
type living struct {
	*fakeStore
	id, host string
	err      error
	asked    []netip.Addr
	drained  control.Node // whose leases it was asked for
}

func (l *living) Published(ctx context.Context, node control.Node) ([]control.Lease, error) {
	l.drained = node
	return l.fakeStore.Published(ctx, node)
}

func (l *living) OtherNode(_ context.Context, node control.Node, public netip.Addr) (host string, lives bool, err error) {
	l.asked = append(l.asked, public)
	return l.host, l.id != "" && l.id != node.ID, l.err
}

// TestDrainWithoutDaemon: the leases of this host are given back through the store, unless it is
// known there that a daemon with another node file lives.
func TestDrainWithoutDaemon(t *testing.T) {
	needUnderlay(t)
	own := strings.Repeat("0c", 32/2)
	for _, c := range []struct {
		name     string
		config   string // bad or none, if not the world's
		id       string // of the node that lives
		err      error  // of the store about that
		down     error
		want     error
		keepFile bool
	}{
		{name: "nobody lives", config: "good"},
		{name: "the daemon of this file lived seconds ago", config: "good", id: own},
		{name: "no config", config: ""},
		{name: "a bad config", config: `{"Network":"10.5"}`},
		{name: "alive elsewhere", config: "good", id: strings.Repeat("0d", 32/2), want: ErrAliveElsewhere, keepFile: true},
		{name: "not known who lives", config: "good", err: errDown, want: errDown, keepFile: true},
		{name: "the store is down", config: "good", down: errDown, want: errDown, keepFile: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			switch c.config {
			case "good":
				w.setConfig(w.config(0, ""))
			case "":
			default:
				w.setConfig(c.config)
			}
			mine, others := w.lease("10.5.7.0/24", "192.0.2.1"), w.lease("10.5.8.0/24", "192.0.2.2")
			for path, text := range map[string]string{
				nodefile.Path(w.cfg.SubnetFile): own + "\npublic 192.0.2.1\npublic 192.0.2.66\n", w.cfg.SubnetFile: "FLANNEL_SUBNET=10.5.7.1/24\n"} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			store := &living{id: c.id, host: "elsewhere", err: c.err}
			w.cfg.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
				s, err := w.openStore(ctx, network, log)
				store.fakeStore = s.(*fakeStore)
				return store, err
			}
			if c.down != nil {
				w.memory("").SetDown(c.down)
			}
			d, err := Drain(t.Context(), w.cfg)
			if !errors.Is(err, c.want) || d.PID != 0 || len(d.Leases) != 1 {
				t.Fatalf("got %+v, %v; want %v", d, err, c.want)
			}
			w.memory("").SetDown(nil)
			left, given := []string{others}, []string{"10.5.7.0/24"}
			if c.want != nil {
				left, given = []string{mine, others}, nil
			}
			if got := w.leases(); !slices.Equal(got, left) || !slices.Equal(d.Leases[0].Subnets, given) {
				t.Errorf("given back %q, left %q; want %q, %q", d.Leases[0].Subnets, got, given, left)
			}
			if c.down == nil && (!slices.Equal(d.Leases[0].Public, []netip.Addr{mustAddr("192.0.2.1")}) || !slices.Equal(store.asked, d.Leases[0].Public)) {
				t.Errorf("addresses %v, asked for %v", d.Leases[0].Public, store.asked)
			}
			if n := store.drained; c.want == nil && (!slices.Equal(n.Former, []netip.Addr{mustAddr("192.0.2.66")}) ||
				!slices.Equal(n.Previous, []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24")})) {
				t.Errorf("the store was told of former addresses %v and previous subnets %v", n.Former, n.Previous)
			}
			if _, err := os.Stat(w.cfg.SubnetFile); (err == nil) != c.keepFile {
				t.Errorf("subnet file: %v, want kept %v", err, c.keepFile)
			}
			if errors.Is(err, ErrAliveElsewhere) && !strings.Contains(err.Error(), "192.0.2.1 on host elsewhere") {
				t.Errorf("got %v", err)
			}
			if store.closed.Load() != 1 {
				t.Error("the store is left open")
			}
			if _, held, err := nodefile.Holder(w.cfg.SubnetFile); held || err != nil {
				t.Errorf("the claim is left: %v", err)
			}
		})
	}
}

// TestDrainOfSeveral: of the networks that a daemon has served here the wanted ones are drained, each
// in its own store; the first that fails is named and ends it.
func TestDrainOfSeveral(t *testing.T) {
	needUnderlay(t)
	for _, c := range []struct {
		name   string
		wanted []string
		down   string // a network whose store does not answer
		want   string // networks that were drained
		says   string
	}{
		{name: "all", want: "blue red"},
		{name: "one", wanted: []string{"red", "never"}, want: "red"},
		{name: "one is down", down: "red", want: "blue", says: "network red: down"},
		{name: "the first is down", down: "blue", want: "", says: "network blue: down"},
	} {
		w := newWorld(t)
		w.several()
		w.cfg.Networks = c.wanted
		for _, name := range []string{"red", "blue"} {
			if n, err := nodefile.Claim(w.cfg.subnetFileOf(name)); err != nil {
				t.Fatal(err)
			} else {
				n.Release()
			}
			w.memory(name).SetConfig(nil, []byte(w.config(0, "")))
			if name == c.down {
				w.memory(name).SetDown(errDown)
			}
		}
		d, err := Drain(t.Context(), w.cfg)
		var drained []string
		for _, l := range d.Leases {
			drained = append(drained, l.Network)
		}
		if got := strings.Join(drained, " "); got != c.want || (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
			t.Errorf("%s: drained %q, %v; want %q, %q", c.name, got, err, c.want, c.says)
		}
	}
}

// TestPublished: a host publishes an address per family of the network, and of both while that is
// not known: then it may have published either.
func TestPublished(t *testing.T) {
	v4 := underlay.End{Local: mustAddr("192.0.2.1"), Public: mustAddr("203.0.113.1")}
	v6 := underlay.End{Local: mustAddr("2001:db8::1"), Public: mustAddr("2001:db8::1")}
	dual, only4, only6 := underlay.Interface{IPv4: v4, IPv6: v6}, underlay.Interface{IPv4: v4}, underlay.Interface{IPv6: v6}
	for _, c := range []struct {
		name  string
		iface underlay.Interface
		v4    bool
		v6    bool
		want  string
	}{
		{"IPv4", dual, true, false, "[203.0.113.1]"},
		{"IPv6", dual, false, true, "[2001:db8::1]"},
		{"both", dual, true, true, "[203.0.113.1 2001:db8::1]"},
		{"not known", dual, false, false, "[203.0.113.1 2001:db8::1]"},
		{"not known, IPv4 only", only4, false, false, "[203.0.113.1]"},
		{"not known, IPv6 only", only6, false, false, "[2001:db8::1]"},
		{"IPv4 over IPv6", only6, true, false, "[2001:db8::1]"},
	} {
		n := New(Config{}).newNetworkQuiet(c.iface)
		if got := fmt.Sprint(n.published(control.Network{EnableIPv4: c.v4, EnableIPv6: c.v6})); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
