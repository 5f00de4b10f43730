package controller_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/controltest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

var rewrite = flag.Bool("rewrite", false, "write what happens into testdata/*.txt, instead of comparing")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScripts runs testdata/*.txt: one command per line, each followed by what it
// led to, indented by a tab. The controller and the store are real; only the
// dataplane is a double that writes down what it is told. Commands:
//
//	config JSON             the network config; first line only
//	put KEY VALUE           write an entry as some other program would
//	lease KEY N             the same with a good lease of node N (public IP 192.168.0.N)
//	delete KEY              remove an entry
//	batch ... end           the commands between arrive while a Sync runs
//	disconnect              a gap in every watch
//	down TEXT, up           the store answers TEXT to every call, answers again
//	fail WHAT TEXT, heal    Sync fails: WHAT is "device" or a peer's address
//	wait DURATION           let time pass
//	start, drain, kill      the controller's life
//	entries, subnetfile     show them
//	tamper TEXT             write TEXT to the subnet file, or remove it without one, as some other program would
//	unordered               from here on only the last Sync after each command counts,
//	                        and its log lines in any order: two goroutines are at work
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			synctest.Test(t, func(t *testing.T) { got = runScript(t, string(text)) })
			switch {
			case *rewrite:
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			case !bytes.Equal(got, text):
				t.Errorf("%s: this happens (go test -rewrite writes it):\n%s", file, got)
			}
		})
	}
}

// bench is a controller with a store in memory and a recording dataplane.
type bench struct {
	t      *testing.T
	memory *controltest.Memory
	plane  *recorder
	file   string
	ctl    *controller.Controller
	cancel context.CancelFunc
	ended  chan error
	events *journal
}

const scriptConfig = `{"Network":"10.3.0.0/16"}`

func newBench(t *testing.T) *bench {
	j := &journal{}
	b := &bench{t: t, memory: controltest.NewMemory(24 * time.Hour), events: j,
		plane: &recorder{events: j, fail: map[string]error{}}, file: filepath.Join(t.TempDir(), "subnet.env")}
	b.memory.SetConfig(t, []byte(scriptConfig))
	t.Cleanup(b.kill)
	return b
}

// start runs a new Controller, as a restart of the daemon does.
func (b *bench) start(previous ...netip.Prefix) {
	b.t.Helper()
	store := b.memory.Open(b.t)
	network, err := store.Network(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	read, err := subnetfile.Read(b.file)
	if err != nil {
		b.t.Fatal(err)
	}
	b.ctl = controller.New(controller.Config{Store: store, Overlay: b.plane, Network: network, MTU: 1450, SubnetFile: b.file, IPMasq: true,
		Node:  control.Node{ID: "a", Name: "host-1", PublicIP: publicIP(1), Previous: append(read, previous...)},
		Log:   slog.New(slog.NewTextHandler(b.events, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: dropTimes})),
		Ready: func() { b.events.add("ready") }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	b.cancel, b.ended = cancel, ended
	go func(c *controller.Controller) { ended <- c.Run(ctx) }(b.ctl)
}

// kill ends Run and waits for it.
func (b *bench) kill() {
	if b.cancel == nil {
		return
	}
	b.cancel()
	if err := <-b.ended; err != nil {
		b.t.Errorf("Run ended with %v", err)
	}
	b.cancel = nil
}

// dropTimes leaves out what differs from run to run.
func dropTimes(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "expires" || a.Key == "public_ip" || a.Key == "file" {
		return slog.Attr{}
	}
	return a
}

// journal is what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// Write takes a line of the log.
func (j *journal) Write(p []byte) (int, error) {
	j.add(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.lines
	j.lines = nil
	return l
}

// recorder is a Dataplane that writes down its Syncs.
type recorder struct {
	events *journal

	mu    sync.Mutex
	fail  map[string]error // by "device" or a peer's address
	last  dataplane.Wanted
	syncs int
	block chan struct{} // if not nil, Sync waits for it to close
}

func publicIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}) }

func (r *recorder) VTEPs() []dataplane.VTEP {
	return []dataplane.VTEP{{Addr: publicIP(1), MAC: dataplane.MAC(publicIP(1), 1), VNI: 1}}
}

func (r *recorder) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (r *recorder) Stats() dataplane.Stats { return dataplane.Stats{} }

func (r *recorder) Sync(ctx context.Context, w dataplane.Wanted) error {
	r.mu.Lock()
	block := r.block
	r.mu.Unlock()
	if block != nil {
		<-block
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = w
	r.syncs++
	var peers []string
	var errs []error
	for _, p := range w.Peers {
		peers = append(peers, fmt.Sprintf("%s%v", p.Addr, p.Subnets))
		if err := r.fail[p.Addr.String()]; err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
		}
	}
	if err := r.fail["device"]; err != nil {
		errs = append(errs, err)
	}
	r.events.add(fmt.Sprintf("sync own=%v peers=%v", w.Subnets, peers))
	return errors.Join(errs...)
}

// wanted returns what the last Sync was told.
func (r *recorder) wanted() dataplane.Wanted {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// count returns how many Syncs there were.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs
}

// goodLease is the value of a lease of node i.
func goodLease(i int) []byte {
	return control.Lease{Subnet: netip.MustParsePrefix("10.3.0.0/24"), PublicIP: publicIP(i), BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(publicIP(i), 1)}}.Value()
}

// runScript returns text with what really happened after each command.
func runScript(t *testing.T, text string) []byte {
	b := newBench(t)
	var out bytes.Buffer
	unordered := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, args, _ := strings.Cut(line, " ")
		unordered = unordered || name == "unordered"
		b.command(name, args)
		synctest.Wait()
		events := b.events.take()
		if unordered {
			events = outcome(events)
		}
		for _, e := range events {
			fmt.Fprintf(&out, "\t%s\n", e)
		}
	}
	return out.Bytes()
}

// outcome returns the different log lines, sorted, and the last Sync.
func outcome(events []string) []string {
	var last []string
	var lines []string
	for _, e := range events {
		if strings.HasPrefix(e, "sync ") {
			last = []string{e}
		} else if e != "" {
			lines = append(lines, e)
		}
	}
	slices.Sort(lines)
	return append(slices.Compact(lines), last...)
}

func (b *bench) command(name, args string) {
	first, rest, _ := strings.Cut(args, " ")
	switch name {
	case "unordered":
	case "config":
		b.memory.SetConfig(b.t, []byte(args))
	case "put":
		b.memory.PutRaw(b.t, first, []byte(rest))
	case "lease":
		var i int
		fmt.Sscan(rest, &i)
		b.memory.PutRaw(b.t, first, goodLease(i))
	case "delete":
		b.memory.DeleteRaw(b.t, first)
	case "batch":
		b.plane.hold()
	case "end":
		b.plane.letGo()
	case "disconnect":
		b.memory.Disconnect(b.t)
	case "down":
		b.memory.SetDown(errors.New(args))
	case "up":
		b.memory.SetDown(nil)
	case "fail":
		b.plane.setFail(first, errors.New(rest))
	case "heal":
		b.plane.setFail("", nil)
	case "wait":
		d, err := time.ParseDuration(args)
		if err != nil {
			b.t.Fatal(err)
		}
		time.Sleep(d) // of the bubble's clock
	default:
		b.lifeCommand(name, args)
	}
}

func (b *bench) lifeCommand(name, args string) {
	switch name {
	case "start":
		var previous []netip.Prefix
		if args != "" {
			previous = append(previous, netip.MustParsePrefix(args))
		}
		b.start(previous...)
	case "kill":
		b.kill()
	case "drain":
		if err := b.ctl.Drain(b.t.Context()); err != nil {
			b.events.add("drain: " + err.Error())
		}
		b.events.add("drained")
		b.kill()
	case "entries":
		for _, k := range b.memory.Keys(b.t) {
			v, _ := b.memory.GetRaw(b.t, k)
			b.events.add(k + " " + string(v))
		}
	case "tamper":
		b.tamper(args)
	case "subnetfile":
		text, _ := os.ReadFile(b.file)
		b.events.add(strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", " "))
	default:
		b.t.Fatalf("unknown command %q", name)
	}
}

// tamper changes the subnet file.
func (b *bench) tamper(text string) {
	err := os.Remove(b.file)
	if text != "" {
		err = os.WriteFile(b.file, []byte(text), 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
}

func (r *recorder) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.block = make(chan struct{})
}

func (r *recorder) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.block)
	r.block = nil
}

func (r *recorder) setFail(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.fail)
	if err != nil {
		r.fail[what] = err
	}
}

// leaseOf returns the lease that a Controller has now.
func leaseOf(c *controller.Controller) (l control.Lease, held bool) {
	s := c.Status()
	return s.Lease, s.Held
}
