package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/controltest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// daemonSpec is a daemon that a process of its own runs on a store in memory.
type daemonSpec struct {
	Mode       fit.Mode
	Config     string // of the network
	SubnetFile string
	Entries    map[string]string // of the store: keys and values
}

const asDaemon = "OVERLAYD_TEST_DAEMON" // its value: a daemonSpec

// runTestDaemon runs a daemon until standard input ends. For each line that it reads it prints the
// status of the daemon, and drains it first if the line says so.
func runTestDaemon(text string) error {
	var spec daemonSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	store := controltest.NewMemory(time.Hour)
	store.SetConfig(nil, []byte(spec.Config))
	for key, value := range spec.Entries {
		store.PutRaw(nil, key, []byte(value))
	}
	offloads, err := userspace.ParseOffloads("all")
	if err != nil {
		return err
	}
	d := New(Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Hostname: "host", SubnetFile: spec.SubnetFile, Options: parts.Options{Mode: spec.Mode, Offloads: offloads},
		OpenStore: func(context.Context, string, *slog.Logger) (control.Store, error) { return store.Open(noTB{}), nil },
		Notify:    func(state string) { fmt.Fprintln(os.Stderr, "notify", state) },
	})
	d.specs = func(s *Session, mtu int) []overlay.Spec {
		return append([]overlay.Spec{{Name: "dummy", Open: func() (dataplane.Part, error) { return dummy{}, nil }}}, s.parts.Specs(mtu)...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "drain" {
			d.Drain()
			if err := <-done; err != nil {
				return err
			}
			done <- nil
		}
		if err := json.NewEncoder(os.Stdout).Encode(d.Status()); err != nil {
			return err
		}
	}
	cancel()
	return <-done
}

// dummy is a part that does nothing.
type dummy struct{}

func (dummy) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) { return w, nil }
func (dummy) Prune(context.Context, dataplane.Wanted) error                        { return nil }
func (dummy) Run(ctx context.Context, _ func()) error                              { <-ctx.Done(); return nil }
func (dummy) Close() error                                                         { return nil }

func (dummy) Status() dataplane.PartStatus {
	return dataplane.PartStatus{Name: "dummy", State: dataplane.StateOK}
}

// noTB is enough of a test for a store.
type noTB struct{ testing.TB }

func (noTB) Cleanup(func()) {}

// testDaemon is such a process.
type testDaemon struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
	log *os.File
}

func startDaemon(t *testing.T, ns *netnstest.NS, spec daemonSpec) *testDaemon {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	d := &testDaemon{t: t}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asDaemon+"="+string(text))
	if d.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = d.log
	if d.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(out)
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", d.logged())
		}
	})
	return d
}

func (d *testDaemon) logged() string {
	d.t.Helper()
	b, err := os.ReadFile(d.log.Name())
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// status asks for the status of its only network.
func (d *testDaemon) status(command string) (n status.Network) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.in, command); err != nil {
		d.t.Fatal(err)
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		d.t.Fatal(err)
	}
	var all []status.Network
	if err := json.Unmarshal([]byte(line), &all); err != nil || len(all) > 1 {
		d.t.Fatalf("%s: %v", line, err)
	}
	if len(all) == 0 { // it has just been started
		return n
	}
	return all[0]
}

// await asks for it until it is ok.
func (d *testDaemon) await(what string, ok func(status.Network) bool) status.Network {
	d.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		n := d.status("")
		if ok(n) {
			return n
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("not %s: %+v", what, n)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leaseOf is the entry of a node in the store.
func leaseOf(subnet, public string) (key, value string) {
	l := control.Lease{Subnet: netip.MustParsePrefix(subnet), PublicIP: netip.MustParseAddr(public), BackendType: "vxlan"}
	l.Backend = control.VTEPData{VNI: 1, MAC: dataplane.MAC(l.PublicIP, 1)}
	return l.Key(), string(l.Value())
}

// TestDaemonStatus: two daemons, each with one more part, carry traffic between them. Their status
// says how they are: the lease, each peer, what is refused, the parts in their order; and after a
// drain that there is nothing.
func TestDaemonStatus(t *testing.T) {
	netnstest.RequireRoot(t)
	for _, c := range []struct {
		mode  fit.Mode
		state controller.PeerState
		back  string
	}{{fit.Kernel, controller.PeerUp, ""}, {fit.Userspace, controller.PeerUp, ""}, {fit.Kernel, controller.PeerDirect, `,"Backend":{"Type":"vxlan","DirectRouting":true}`}} {
		t.Run(string(c.mode)+" "+string(c.state), func(t *testing.T) {
			hosts := []*netnstest.NS{netnstest.New(t), netnstest.New(t)}
			netnstest.LAN(t, "192.0.2.0/24", hosts...)
			subnets, publics := []string{"10.5.1.0/24", "10.5.2.0/24"}, []string{"192.0.2.2", "192.0.2.3"}
			var daemons [2]*testDaemon
			for i, h := range hosts {
				file := filepath.Join(t.TempDir(), "subnet.env")
				if err := os.WriteFile(file, []byte("FLANNEL_SUBNET="+strings.Replace(subnets[i], ".0/", ".1/", 1)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				key, value := leaseOf(subnets[1-i], publics[1-i])
				refused, bad := leaseOf("10.9.9.0/24", publics[1-i])
				daemons[i] = startDaemon(t, h, daemonSpec{c.mode, `{"Network":"10.5.0.0/16","EnableNFTables":true` + c.back + `}`, file,
					map[string]string{key: value, refused: bad, "10.5.8.0-24": "x"}})
			}
			for i, d := range daemons {
				n := d.await("ready", func(n status.Network) bool { return n.Ready && len(n.Peers) > 0 && n.Peers[0].State == c.state })
				checkStatus(t, n, c.mode, netip.MustParsePrefix(subnets[i]), netip.MustParseAddr(publics[i]))
				if p := n.Peers[0]; p.Subnet.String() != subnets[1-i] || p.VTEP.String() != publics[1-i] || p.Since.IsZero() {
					t.Errorf("peer %+v", p)
				}
			}
			exchange(t, hosts, "10.5.1.0", "10.5.2.0")
			if n := daemons[0].status(""); c.state == controller.PeerUp && n.Counters["tx_packets"] == 0 {
				t.Errorf("nothing was counted: %v", n.Counters)
			}
			n := daemons[0].status("drain")
			if n.Ready || n.Lease != nil || !n.SessionStart.IsZero() || n.Err != errDrained.Error() || n.ErrSince.IsZero() {
				t.Errorf("after a drain: %+v", n)
			}
			if log := daemons[0].logged(); !strings.Contains(log, "notify READY=1") || !strings.Contains(log, "notify STOPPING=1") {
				t.Errorf("the service manager was not told:\n%s", log)
			}
		})
	}
}

func checkStatus(t *testing.T, n status.Network, mode fit.Mode, subnet netip.Prefix, public netip.Addr) {
	t.Helper()
	if n.V != status.Version || n.Mode != string(mode) || n.VNI != 1 || n.Port != 8472 || n.MTU != 1450 || n.Err != "" ||
		n.SessionStart.IsZero() || n.ReadySince.Before(n.SessionStart) {
		t.Errorf("session: %+v", n)
	}
	if l := n.Lease; l == nil || !slices.Equal(l.Subnets, []netip.Prefix{subnet}) || len(l.VTEPs) != 1 || l.VTEPs[0].Public != public ||
		l.VTEPs[0].MAC != dataplane.MAC(public, 1).String() || l.Expires.IsZero() {
		t.Errorf("lease: %+v", n.Lease)
	}
	if len(n.Rejected) != 1 || len(n.Bad) != 1 || n.Bad[0].Err == "" || n.Control.Syncs == 0 {
		t.Errorf("rejected %+v, bad %+v, control %+v", n.Rejected, n.Bad, n.Control)
	}
	var parts []string
	for _, p := range n.Parts {
		parts = append(parts, p.Name)
		if p.State != dataplane.StateOK {
			t.Errorf("part %+v", p)
		}
	}
	if len(parts) != 8 || parts[0] != "dummy" {
		t.Errorf("parts %q", parts)
	}
	if u := n.Underlay; u == nil || u.Interface != "eth0" || u.MTU != 1500 || len(u.Ends) != 1 || u.Ends[0].Public != public {
		t.Errorf("underlay %+v", n.Underlay)
	}
}

// exchange sends a line over the overlay, from the first host to the second.
func exchange(t *testing.T, hosts []*netnstest.NS, from, to string) {
	t.Helper()
	var l net.Listener
	hosts[1].Must(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to, "7000")); return err })
	defer l.Close()
	received := make(chan string, 1)
	go func() {
		defer close(received)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		line, _ := bufio.NewReader(c).ReadString('\n')
		received <- line
	}()
	hosts[0].Must(func() error {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", net.JoinHostPort(to, "7000"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = fmt.Fprintln(c, "over the overlay")
		return err
	})
	if line := <-received; line != "over the overlay\n" {
		t.Errorf("received %q", line)
	}
}
