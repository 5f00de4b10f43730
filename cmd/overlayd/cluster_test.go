package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// cluster is a real etcd and real overlayd processes on hosts made of network
// namespaces: host i has eth0 with 192.0.2.(2+i)/24 and default offloads.
//
//	         under: bridge 192.0.2.1, etcd
//	       ┌────────────┴────────────┐
//	host 0: eth0 192.0.2.2    host 1: eth0 192.0.2.3   …
//	overlayd, flannel.1       overlayd, flannel.1
//	       │ pod0                    │ pod0
//	pod: eth0 <subnet>.2      pod: eth0 <subnet>.2
type cluster struct {
	t      *testing.T
	under  *netnstest.NS
	hosts  []*host
	client *clientv3.Client // speaks to etcd from the under namespace
	url    string
}

// testNetwork leaves 10.5.64.0 and above to the leases that tests write by hand.
const testNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`

// newCluster starts etcd with config (none where it is empty) and makes n hosts
// on which nothing runs yet.
func newCluster(t *testing.T, n int, config string) *cluster {
	t.Helper()
	c := &cluster{t: t, url: "http://192.0.2.1:2379"}
	var namespaces []*netnstest.NS
	for i := range n {
		ns := netnstest.New(t)
		namespaces = append(namespaces, ns)
		c.hosts = append(c.hosts, &host{
			NS: ns, c: c, name: fmt.Sprintf("host%d", i),
			addr:       netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}),
			subnetFile: filepath.Join(t.TempDir(), "subnet.env"),
		})
	}
	c.under = netnstest.LAN(t, "192.0.2.0/24", namespaces...)
	etcd := start(t, c.under, "etcd", []string{asEtcd + "=" + t.TempDir() + " " + c.url})
	t.Cleanup(func() { etcd.stop(unix.SIGKILL) })
	c.connect()
	if config != "" {
		c.put("/coreos.com/network/config", config)
	}
	return c
}

func (c *cluster) connect() {
	c.t.Helper()
	var err error
	c.client, err = clientv3.New(clientv3.Config{Endpoints: []string{c.url}, Logger: zap.NewNop(), DialOptions: dialIn(c.under)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.client.Close() })
	eventually(c.t, 10*time.Second, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, err := c.client.Get(ctx, "x")
		return err
	})
}

func (c *cluster) put(key, value string) {
	c.t.Helper()
	if _, err := c.client.Put(c.t.Context(), key, value); err != nil {
		c.t.Fatalf("put %s: %v", key, err)
	}
}

func (c *cluster) delete(key string) {
	c.t.Helper()
	if _, err := c.client.Delete(c.t.Context(), key); err != nil {
		c.t.Fatalf("delete %s: %v", key, err)
	}
}

// get returns a key's value, empty where there is none.
func (c *cluster) get(key string) string {
	c.t.Helper()
	r, err := c.client.Get(c.t.Context(), key)
	if err != nil {
		c.t.Fatalf("get %s: %v", key, err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// host is one machine: its namespace, and the daemon where one runs.
type host struct {
	*netnstest.NS
	c          *cluster
	name       string
	addr       netip.Addr
	subnetFile string
	daemon     *process
}

// start starts overlayd without waiting for it.
func (h *host) start(args ...string) *process {
	h.c.t.Helper()
	args = append([]string{"--etcd-endpoints", h.c.url, "--subnet-file", h.subnetFile}, args...)
	h.daemon = start(h.c.t, h.NS, h.name, []string{asOverlayd + "=1"}, args...)
	return h.daemon
}

// up starts overlayd and waits until it says that it is ready.
func (h *host) up(args ...string) {
	h.c.t.Helper()
	h.start(args...).waitLog(`msg=ready`, 10*time.Second)
}

// env reads the subnet file, and waits for it where there is none: FLANNEL_SUBNET
// and so on.
func (h *host) env(key string) (value string) {
	h.c.t.Helper()
	eventually(h.c.t, 10*time.Second, h.subnetFile+" has "+key, func() error {
		b, err := os.ReadFile(h.subnetFile)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k == key {
				value = v
				return nil
			}
		}
		return fmt.Errorf("only:\n%s", b)
	})
	return value
}

// gateway returns the host's address towards its pods, with the subnet's length.
func (h *host) gateway() netip.Prefix {
	h.c.t.Helper()
	return netip.MustParsePrefix(h.env("FLANNEL_SUBNET"))
}

// key is the store's key of the host's lease.
func (h *host) key() string {
	h.c.t.Helper()
	p := h.gateway().Masked()
	return fmt.Sprintf("/coreos.com/network/subnets/%s-%d", p.Addr(), p.Bits())
}

// pod is a workload behind a host, with an address out of the host's subnet.
type pod struct {
	*netnstest.NS
	addr netip.Addr
}

// pod makes the i-th pod behind h; MTU 0 is the overlay's.
func (h *host) pod(i, mtu int) *pod {
	h.c.t.Helper()
	p := &pod{NS: netnstest.New(h.c.t)}
	gw := h.gateway()
	p.addr = gw.Addr()
	for range i + 1 {
		p.addr = p.addr.Next()
	}
	if mtu == 0 {
		fmt.Sscan(h.env("FLANNEL_MTU"), &mtu)
	}
	name := fmt.Sprintf("pod%d", i)
	netnstest.Link(h.NS, name, p.NS, "eth0")
	setMTU := func(link string) func() error {
		return func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, mtu)
		}
	}
	h.Must(setMTU(name))
	p.Must(setMTU("eth0"))
	h.Addr(name, netip.PrefixFrom(gw.Addr(), 32).String())
	h.Must(func() error { return addRoute(name, netip.PrefixFrom(p.addr, 32)) })
	p.Addr("eth0", netip.PrefixFrom(p.addr, gw.Bits()).String())
	p.DefaultRoute(gw.Addr().String())
	return p
}

func addRoute(link string, dst netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	d, err := netlink.ParseIPNet(dst.String())
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: d, Scope: netlink.SCOPE_LINK})
}

// process is a child in a namespace whose standard error is kept.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; then err is set
	err  error

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs this test binary as env says.
func start(t *testing.T, ns *netnstest.NS, name string, env []string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // the race detector's second at exit is not the daemon's
	return startCommand(t, ns, name, cmd)
}

// startCommand starts cmd in ns. A process that the test leaves running is killed
// with the test, and its log is shown if the test failed.
func startCommand(t *testing.T, ns *netnstest.NS, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, done: make(chan struct{}), cmd: cmd}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := ns.Start(cmd); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	w.Close()
	go p.read(r)
	t.Cleanup(func() {
		p.stop(unix.SIGKILL)
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.text())
		}
	})
	return p
}

func (p *process) read(r *os.File) {
	defer close(p.done)
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		p.mu.Lock()
		p.log.Write(s.Bytes())
		p.log.WriteByte('\n')
		p.mu.Unlock()
	}
	p.err = p.cmd.Wait()
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) waitLog(part string, limit time.Duration) {
	p.t.Helper()
	eventually(p.t, limit, p.name+" logs "+part, func() error {
		if strings.Contains(p.text(), part) {
			return nil
		}
		select {
		case <-p.done:
			p.t.Fatalf("%s ended (%v) before it logged %q:\n%s", p.name, p.err, part, p.text())
		default:
		}
		return fmt.Errorf("not in the log")
	})
}

// stop sends a signal, waits for the end and returns the exit code (-1: killed).
func (p *process) stop(sig unix.Signal) int {
	p.cmd.Process.Signal(sig)
	return p.wait(20 * time.Second)
}

func (p *process) wait(limit time.Duration) int {
	select {
	case <-p.done:
	case <-time.After(limit):
		p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%s did not end within %s", p.name, limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

// eventually polls until ok returns nil.
func eventually(t *testing.T, limit time.Duration, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", limit, what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
