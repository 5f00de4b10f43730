package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// reply is an IPv4 packet with an echo reply.
func reply(id, seq uint16, data string, options int) []byte {
	b := make([]byte, 20+options+8, 20+options+8+len(data))
	b[0] = 0x40 | byte(len(b)-8)/4
	binary.BigEndian.PutUint16(b[len(b)-4:], id)
	binary.BigEndian.PutUint16(b[len(b)-2:], seq)
	return append(b, data...)
}

// TestRepliesAreCounted: each request once, however late its reply comes, and nobody else's.
func TestRepliesAreCounted(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := &Pinger{echo: icmp.Echo{ID: 7, Data: []byte(pingData)}}
	for seq := 1; seq <= 3; seq++ { // three requests, 10 ms apart
		p.start[seq], p.echo.Seq = at(10*seq), seq
		p.Sent++
	}
	for _, step := range []struct {
		what   string
		packet []byte
		last   bool // it answers the latest request
		err    bool
		lost   int
	}{
		{"empty", nil, false, false, 3},
		{"too short for IPv4", make([]byte, 19), false, false, 3},
		{"too short for ICMP", reply(7, 3, "", 0)[:27], false, false, 3},
		{"of another pinger", reply(8, 3, pingData, 0), false, false, 3},
		{"late", reply(7, 1, pingData, 0), false, false, 2},
		{"late, again", reply(7, 1, pingData, 0), false, false, 2},
		{"of a request that was never sent", reply(7, 99, pingData, 0), false, false, 2},
		{"one bit wrong", reply(7, 3, "p"+pingData[1:], 0), false, true, 2},
		{"cut", reply(7, 3, pingData[1:], 0), false, true, 2},
		{"latest, behind IP options", reply(7, 3, pingData, 8), true, false, 1},
		{"latest, again", reply(7, 3, pingData, 0), true, false, 1},
		{"out of order", reply(7, 2, pingData, 0), false, false, 0},
	} {
		last, err := p.take(step.packet, at(100))
		if last != step.last || (err != nil) != step.err || p.Lost() != step.lost {
			t.Errorf("%s: last %v, %v, %d lost, want %v, an error: %v, %d lost", step.what, last, err, p.Lost(), step.last, step.err, step.lost)
		}
	}
	want := []time.Duration{90 * time.Millisecond, 70 * time.Millisecond, 80 * time.Millisecond}
	if !slices.Equal(p.RTTs, want) {
		t.Errorf("round trips are %v, want %v in the order of the replies", p.RTTs, want)
	}
}

// TestPingsStopWhenTooManyAreLost: a series to a host that does not answer is short.
func TestPingsStopWhenTooManyAreLost(t *testing.T) {
	bed := newBed(t, "overlayd-losttest-", 2)
	from, to := bed.Hosts[0].NS, bed.Hosts[1]
	if err := to.NS.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/icmp_echo_ignore_all", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	got, err := from.Ping(t.Context(), to.Addr, Pings{Count: 50, MaxLost: 0})
	if err != nil || got.Sent != 1 || got.Lost != 1 || got.RTT != 0 {
		t.Errorf("got %+v, %v, want one lost request", got, err)
	}
}

// TestStreamNoticesItsEnd: a sender whose receiver goes away does not wait for ever.
func TestStreamNoticesItsEnd(t *testing.T) {
	l, err := ListenTCP(netip.MustParseAddrPort("127.0.0.1:0"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to, err := l.Local()
	if err != nil {
		t.Fatal(err)
	}
	client, err := DialTCP(to)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if sent, err := client.SendStream(Zeros(), time.Hour); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("sent %d bytes, %v", sent, err)
	}
	l.Close()
	if s, err := DialTCP(to); err == nil {
		s.Close()
		t.Error("connected where nobody listens")
	}
}

// TestProcessStop: who ends by itself, with an error, or not at all is told from who stops.
func TestProcessStop(t *testing.T) {
	netnstest.RequireRoot(t)
	bed := newBed(t, "overlayd-processtest-", 0)
	for _, c := range []struct {
		name, script, want string // want "": no error
	}{
		{"stops", "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done", ""},
		{"ends with an error", "trap 'exit 4' TERM; echo up; while :; do sleep 0.02; done", "ended with an error when it was stopped: exit status 4"},
		{"does not stop", "trap '' TERM; echo up; while :; do sleep 0.02; done", "did not stop within 200ms and was killed"},
		{"ended before", "echo up; exit 5", "had ended by itself (exit status 5)"},
	} {
		log := filepath.Join(t.TempDir(), "log")
		p, err := bed.lan.Start(Command{Argv: []string{"/bin/sh", "-c", c.script}, Env: os.Environ(), Dir: "/", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if text, _ := os.ReadFile(log); len(text) > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not up", c.name)
			}
		}
		patience := 10 * time.Second
		if strings.Contains(c.script, "trap ''") {
			patience = 200 * time.Millisecond
		}
		if c.name == "ended before" {
			<-p.Exited()
		}
		err = p.Stop(patience)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		<-p.Exited()
	}
	if _, err := bed.lan.Start(Command{Argv: []string{"/nonexistent"}, Log: filepath.Join(t.TempDir(), "log")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start of what is not there: %v", err)
	}
	if _, err := bed.lan.Start(Command{Argv: []string{"true"}, Log: "/nonexistent/log"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start without a log: %v", err)
	}
}

// TestRemoveStopsDaemonsOfAKilledRun, which nobody else would, and tells what it removed.
func TestRemoveStopsDaemonsOfAKilledRun(t *testing.T) {
	netnstest.RequireRoot(t)
	const prefix, other = Prefix("overlayd-killedtest-"), Prefix("overlayd-killedother-")
	t.Setenv("TMPDIR", t.TempDir())
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), filepath.Base(own))
	if err := os.WriteFile(program, shell, 0o755); err != nil {
		t.Fatal(err)
	}
	begin := func(p Prefix) (*exec.Cmd, chan error) {
		file := filepath.Join(os.TempDir(), string(p)+"1", "host1", "subnet.env")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "-c", "read line", "x", SubnetFileFlag, file)
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return cmd, ended
	}
	_, ended := begin(prefix)
	bystander, bystanderEnded := begin(other)
	removed, err := prefix.Remove()
	if err != nil || removed != "processes: 1, directories: 1" {
		t.Errorf("removed %q, %v", removed, err)
	}
	if err := <-ended; err == nil || err.Error() != "signal: terminated" {
		t.Errorf("the daemon ended with %v", err)
	}
	select {
	case err := <-bystanderEnded:
		t.Errorf("a daemon of another prefix ended with %v", err)
	default:
		bystander.Process.Kill()
		<-bystanderEnded
	}
	if removed, err := prefix.Remove(); removed != "" || err != nil {
		t.Errorf("the second time: %q, %v", removed, err)
	}
}

// TestOwnDirs: what an ordinary user puts into the shared directory is not followed.
func TestOwnDirs(t *testing.T) {
	netnstest.RequireRoot(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, dir := range []string{"p-mine", "p-theirs", "q-mine"} {
		if err := os.Mkdir(filepath.Join(tmp, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.Chown(filepath.Join(tmp, "p-theirs"), 65534, 65534),
		os.WriteFile(filepath.Join(tmp, "p-file"), nil, 0o644),
		os.Symlink("/etc", filepath.Join(tmp, "p-link")))
	if err != nil {
		t.Fatal(err)
	}
	got, err := OwnDirs("p-")
	if want := []string{filepath.Join(tmp, "p-mine")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := OwnDirs("x["); err == nil {
		t.Errorf("a bad pattern found %v", got)
	}
}

// TestLinksOfANamespace: each step works, and each error names the namespace and the link.
func TestLinksOfANamespace(t *testing.T) {
	bed := newBed(t, "overlayd-linktest-", 1)
	n := bed.Hosts[0].NS
	if err := n.ProbeVXLAN(); err != nil || n.HasLink("probe0") {
		t.Errorf("probe: %v, left a link: %v", err, n.HasLink("probe0"))
	}
	if err := n.SetMTU("eth0", 1400); err != nil {
		t.Error(err)
	}
	if l, err := n.Link("eth0"); err != nil || l.Attrs().MTU != 1400 {
		t.Errorf("link %+v, %v", l, err)
	}
	inside, err := OpenNamespace("process", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if inside.HasLink("br0") && !bed.lan.HasLink("br0") {
		t.Error("the bridge is in the namespace of the test")
	}
	inside.Close()
	p := netip.MustParsePrefix("10.0.0.1/24")
	for what, err := range map[string]error{
		"find link none0":      n.SetUp("none0"),
		"find link none1":      n.SetMTU("none1", 1400),
		"find link none2":      n.AddAddr("none2", p),
		"find link none3":      n.AddPort("none3"),
		"find link br0":        n.AddPort("eth0"),
		"set MTU of link eth0": n.SetMTU("eth0", 1),
		"add veth eth0":        n.AddVeth("eth0", bed.lan, "x0", 0),
		"add address":          n.AddAddr("eth0", netip.PrefixFrom(bed.Hosts[0].Addr, 24)),
		"add default route":    n.AddDefaultRoute(netip.MustParseAddr("203.0.113.1")),
		"add bridge":           bed.lan.AddBridge(),
	} {
		if err == nil || !strings.Contains(err.Error(), what) || !strings.HasPrefix(err.Error(), "overlayd-linktest-") {
			t.Errorf("%s: %v", what, err)
		}
	}
	boom := fmt.Errorf("boom")
	if err := n.Do(func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("error of a function: %v", err)
	}
}

// TestHostsAreRemovedAfterAFailure: a host that could not be made leaves nothing, nor do those before it.
func TestHostsAreRemovedAfterAFailure(t *testing.T) {
	netnstest.RequireRoot(t)
	const prefix = Prefix("overlayd-failtest-")
	bed, err := New(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(bed.Dir, "host2"), 0o755); err != nil { // the second host's place is taken
		t.Fatal(err)
	}
	first, err := bed.AddHost()
	if err != nil || first.Running() || first.Logs(3) != "" {
		t.Errorf("first host: %v", err)
	}
	if _, err := bed.AddHost(); err == nil || !strings.HasPrefix(err.Error(), "host2: ") {
		t.Errorf("second host: %v", err)
	}
	if err := bed.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := os.Stat(bed.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if removed, err := prefix.Remove(); removed != "" || err != nil {
		t.Errorf("left %q, %v", removed, err)
	}
}

// TestReachNamesWhoIsUnreachable, and measures of it nothing more.
func TestReachNamesWhoIsUnreachable(t *testing.T) {
	bed := newBed(t, "overlayd-reachtest-", 2)
	a, b := bed.Hosts[0], bed.Hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	results := Reach(ctx, []Pair{
		{From: "host1", To: "host2", FromNS: a.NS, ToNS: b.NS, Addr: b.Addr},
		{From: "host1", To: "nobody", FromNS: a.NS, ToNS: b.NS, Addr: netip.MustParseAddr("192.0.2.99"), TCP: true},
	})
	MeasurePing(t.Context(), results, Pings{Count: 2})
	MeasureTCP(t.Context(), results, time.Hour)
	if r := results[0]; r.Err != nil || r.Ping.Sent != 2 || r.Gbit != 0 {
		t.Errorf("reachable, without TCP: %+v", r)
	}
	if r := results[1]; r.Err == nil || !strings.Contains(r.Err.Error(), "192.0.2.99") || r.Ping.Sent != 0 {
		t.Errorf("unreachable: %+v", r)
	}
}
