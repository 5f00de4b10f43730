package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// peak returns VmHWM in kB: the most memory that the process has had.
func (p *process) peak() (kb int) {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	fmt.Sscan(rest, &kb)
	return kb
}

// newLooseCluster is newCluster with an etcd that takes what any etcd takes, and not only what an embedded one does.
func newLooseCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := newHosts(t, []string{under4}, n)
	m := etcdtest.Members{Dirs: []string{t.TempDir()}, Peers: []string{"http://192.0.2.1:3380"}, Clients: []string{c.url}}
	e := &etcdtest.Etcd{Members: m, Prefix: strings.TrimSuffix(storePrefix, "/"), In: c.under.Do, Connected: func(e *clientv3.Client) { c.client = e }}
	e.Run(t)
	return c
}

// maxResident is what a daemon may need while somebody fills its store, in kB.
const maxResident = 150_000

// TestLargeValues: hundreds of values of a megabyte, wherever a daemon reads, cost it neither its memory nor a peer, each lease
// that is one is named, and a value that comes meanwhile is no more than that.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	large, values := strings.Repeat("x", 1<<20), 300
	if raceEnabled { // the detector has memory of its own, so that none is measured
		values = 60
	}
	for i := range values {
		c.put(fmt.Sprintf("%s10.5.%d.0-24", subnets, 64+i%64)+strings.Repeat("?", i/64), large)
	}
	for i := range 30 {
		c.put(fmt.Sprintf("%soverlayd/nodes/198.51.100.%d", storePrefix, i), large)
		c.put(fmt.Sprintf("%soverlayd/revoked/10.5.%d.0-24", storePrefix, i), large)
	}
	watched := make([]int, len(c.hosts))
	for i, h := range c.hosts {
		h.daemon.waitLog("value has more than 65536 bytes", patience)
		watched[i] = h.daemon.peak()
		mode := []string{modeUserspace, modeKernel}[i]
		h.daemon.stop(unix.SIGTERM)
		h.up("--dataplane", mode)
		h.daemon.waitLog("value has more than 65536 bytes", patience)
	}
	warmUp(t, a, b)
	for i, h := range c.hosts {
		t.Logf("%s: %d kB as they came, %d kB when it listed them", h.name, watched[i], h.daemon.peak())
		if most := max(watched[i], h.daemon.peak()); most > maxResident && !raceEnabled {
			t.Errorf("%s had %d kB of memory, want at most %d", h.name, most, maxResident)
		}
	}
}

// TestJunkKeys: while somebody writes junk keys a new lease is used within 200 ms, and the daemon neither fills its log nor its
// memory, nor after a restart. OVERLAYD_JUNK, as in make test-long, is how many there are, and has the times checked.
func TestJunkKeys(t *testing.T) {
	t.Parallel()
	junk := int(numberFrom(t, "OVERLAYD_JUNK", 20_000))
	strict := junk >= 100_000
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	a, b := c.upPair([2]string{modeKernel, modeUserspace})
	h := c.hosts[0]
	said := len(h.daemon.text())
	began := time.Now()
	slowest := h.slowestBeside(junk, func(i int) clientv3.Op { return clientv3.OpPut(fmt.Sprintf("%sjunk-%d", subnets, i), "junk") })
	t.Logf("%d junk keys in %s: a lease was used after %s at most, %d kB of memory", junk, time.Since(began).Round(time.Millisecond), slowest, h.daemon.peak())
	if limit := 200 * time.Millisecond; slowest > limit && strict || slowest > promised(10*limit) {
		t.Errorf("a lease was used after %s, want %s", slowest, limit)
	}
	for _, h := range c.hosts {
		h.daemon.waitLog("entry ignored: and more", patience)
	}
	if lines := strings.Count(h.daemon.text()[said:], "\n"); lines > 100+2*64 { // of the leases that came and went
		t.Errorf("%d lines:\n%s", lines, h.daemon.text()[said:])
	}
	if n := linesWith(h.daemon.text(), "entry ignored"); n > 100 {
		t.Errorf("%d lines of junk", n)
	}
	warmUp(t, a, b)
	peak := h.daemon.peak()
	h.daemon.stop(unix.SIGTERM)
	h.up("--dataplane", modeKernel)
	if most := max(peak, h.daemon.peak()); most > maxResident && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", most, maxResident)
	}
	warmUp(t, a, b)
}

// slowestBeside returns how long a lease takes at most to be used while somebody writes what op returns, n times, as fast as etcd takes it.
func (h *host) slowestBeside(n int, op func(i int) clientv3.Op) (slowest time.Duration) {
	t, etcd := h.c.t, h.c.client
	t.Helper()
	done := make(chan error, 1)
	go func() {
		const batch = 100
		for i := 0; i < n; i += batch {
			var ops []clientv3.Op
			for j := i; j < min(i+batch, n); j++ {
				ops = append(ops, op(j))
			}
			if _, err := etcd.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := 0; ; i++ {
		slowest = max(slowest, h.learns(i%32+64))
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return slowest
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// learns returns how long it takes from the write of a lease until the kernel has its route. It deletes the lease again.
func (h *host) learns(subnet int) time.Duration {
	h.c.t.Helper()
	key := fmt.Sprintf("%s10.5.%d.0-24", subnets, subnet)
	h.c.put(key, fmt.Sprintf(`{"PublicIP":"192.0.2.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:02:%02x"}}`, 100+subnet%64, subnet))
	written := time.Now()
	to := netip.AddrFrom4([4]byte{10, 5, byte(subnet), 1})
	eventually(h.c.t, patience, "the route to "+to.String(), func() error {
		return h.Do(func() error {
			routes, err := netlink.RouteGet(to.AsSlice())
			if err != nil {
				return err
			}
			link, err := netlink.LinkByIndex(routes[0].LinkIndex)
			if err == nil && link.Attrs().Name != "flannel.1" {
				err = fmt.Errorf("by %s", link.Attrs().Name)
			}
			return err
		})
	})
	took := time.Since(written)
	h.c.delete(key)
	return took
}

// TestJunkNetworks: names without a config, names that nobody may have, and configs that nobody can read keep no network from
// being served, and are a few lines.
func TestJunkNetworks(t *testing.T) {
	t.Parallel()
	c := newLooseCluster(t, 1)
	const junk = 6000
	var ops []clientv3.Op
	for i := range junk {
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("%sa%d/x", storePrefix, i), ""), clientv3.OpPut(fmt.Sprintf("%sa b%d/config", storePrefix, i), testNetwork),
			clientv3.OpPut(fmt.Sprintf("%sb%d/config", storePrefix, i), "junk"))
		if len(ops) > 90 || i == junk-1 {
			if _, err := c.client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
	c.put(storePrefix+"z/config", testNetwork)
	h := c.hosts[0]
	began := time.Now()
	h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", modeKernel, "--watch-networks", "--subnet-dir", t.TempDir())
	h.daemon.waitLog("msg=ready network=z", patience)
	t.Logf("served after %s, with %d kB of memory", time.Since(began).Round(time.Millisecond), h.daemon.peak())
	if lines := bytes.Count([]byte(h.daemon.text()), []byte("\n")); lines > 250 {
		t.Errorf("%d lines", lines)
	}
	if kb := h.daemon.peak(); kb > maxResident && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", kb, maxResident)
	}
}
