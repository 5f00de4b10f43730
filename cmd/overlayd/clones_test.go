package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// cloneCase is a host and a clone of it, which has a copy of its files.
type cloneCase struct {
	mode   string
	same   bool        // the clone has the address of the original, too
	before unix.Signal // the original gets it before the clone starts; 0: none
}

// TestClones: of a host and its clone the one that lives keeps its subnet and loses no packet, and both say what
// happened. An original that is stopped or dead takes half a minute until its record has expired: with OVERLAYD_CLONES=all only,
// as in make test-long.
func TestClones(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		for _, same := range []bool{false, true} {
			for name, before := range map[string]unix.Signal{"alive": 0, "stopped": unix.SIGSTOP, "dead": unix.SIGKILL} {
				if before != 0 && os.Getenv("OVERLAYD_CLONES") != "all" {
					continue
				}
				t.Run(fmt.Sprintf("%s/same_address_%v/%s", mode, same, name), func(t *testing.T) {
					t.Parallel()
					cloneCase{mode, same, before}.run(t)
				})
			}
		}
	}
}

// clonedLog is in the log of a daemon that has seen a clone.
const clonedLog = `msg="another host runs with a copy of this node's file`

func (cc cloneCase) run(t *testing.T) {
	c := newCluster(t, 3, testNetwork)
	a, b := c.upPair([2]string{cc.mode, modeKernel})
	original, clone, url := c.hosts[0], c.hosts[2], c.url
	if cc.same {
		clone, url = c.elsewhere(original)
	}
	for _, suffix := range []string{"", ".node"} {
		text, err := os.ReadFile(original.subnetFile + suffix)
		if err == nil {
			err = os.WriteFile(clone.subnetFile+suffix, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	start := func(h *host, url string) {
		h.daemon = h.overlayd("--etcd-endpoints", url, "--subnet-file", h.subnetFile, "--dataplane", cc.mode)
	}
	first, second := original, func() { start(clone, url) } // who lives, and what begins with the other one
	if cc.before != 0 {
		original.daemon.cmd.Process.Signal(cc.before)
		subnet := original.gateway()
		start(clone, url)
		clone.daemon.waitLog("msg=ready", 2*patience)
		if got := clone.gateway(); got != subnet {
			t.Fatalf("the clone has %s, the original had %s", got, subnet)
		}
		first, a = clone, clone.pod(1, 0)
		second = func() { original.daemon.cmd.Process.Signal(unix.SIGCONT) }
		if cc.before == unix.SIGKILL {
			second = func() { start(original, c.url) }
		}
	}
	if cc.same && cc.before != 0 {
		b = nil // the clone's peers are elsewhere, too
	}
	cc.check(t, c, first, second, a, b)
}

// check starts the second of two hosts, while there is traffic between a pod of the first one and b.
func (cc cloneCase) check(t *testing.T, c *cluster, first *host, second func(), a, b *pod) {
	subnet, entry := first.gateway(), c.get(first.key())
	var there, back *meter
	if b != nil {
		warmUp(t, a, b)
		there, back = startMeters(t, a, b)
		waitTraffic(t, there, 100)
	}
	second()
	other := c.other(first)
	if cc.same {
		cc.ends(t, other, first, second)
	} else {
		cc.leaves(t, other, first)
		warmUp(t, other.pod(2, 0), a)
	}
	first.daemon.waitLog(clonedLog, patience)
	if b != nil {
		waitTraffic(t, back, 100)
		if lost := there.finish() + back.finish(); lost > 0 {
			t.Errorf("%d datagrams lost by the one that lives", lost)
		}
	}
	if got := first.gateway(); got != subnet || c.get(first.key()) != entry {
		t.Errorf("the one that lives has %s and entry %s, had %s and %s", got, c.get(first.key()), subnet, entry)
	}
	if n := strings.Count(first.daemon.text(), clonedLog); n != 1 {
		t.Errorf("the one that lives has %d lines about it, want 1", n)
	}
}

// other returns the host of two that is not first: the original or the clone, which is the last one.
func (c *cluster) other(first *host) *host {
	if first == c.hosts[0] {
		return c.hosts[len(c.hosts)-1]
	}
	return c.hosts[0]
}

// ends wants the daemon of a host with the address of another one, which lives, to end each time that it is started.
func (cc cloneCase) ends(t *testing.T, h, lives *host, again func()) {
	t.Helper()
	for i := range 3 {
		if i > 0 {
			again()
		}
		if code := h.daemon.wait(patience); code != exitUsage {
			t.Errorf("start %d: exit code %d, want %d", i, code, exitUsage)
		}
		if want := fmt.Sprintf(" at %s has answered", lives.addr); !strings.Contains(h.daemon.text(), want) {
			t.Errorf("start %d: it does not say %q", i, want)
		}
		if cc.before == unix.SIGSTOP {
			return // it has gone on, and was not started
		}
	}
}

// leaves wants the daemon of a host to take a subnet of its own beside one that lives.
func (cc cloneCase) leaves(t *testing.T, h, lives *host) {
	t.Helper()
	if cc.before == unix.SIGSTOP {
		h.daemon.waitLog(`msg="lease lost`, patience)
		h.daemon.waitLog(clonedLog, patience)
	} else {
		h.daemon.waitLog("msg=ready", patience)
		h.daemon.waitLog("its subnet is left to it", patience)
	}
	eventually(t, patience, "a subnet of its own", func() error {
		env, err := readEnv(h.subnetFile)
		if err == nil && (env["FLANNEL_SUBNET"] == "" || env["FLANNEL_SUBNET"] == lives.gateway().String()) {
			err = fmt.Errorf("it has %q", env["FLANNEL_SUBNET"])
		}
		return err
	})
}

// elsewhere makes a host with the address of another one, on a network of its own. It reaches etcd by the URL.
func (c *cluster) elsewhere(h *host) (clone *host, url string) {
	c.t.Helper()
	clone = c.addHost(h.addr)
	netnstest.LAN(c.t, under4, clone.NS)
	var l net.Listener
	clone.Must(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err })
	c.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go c.toEtcd(in)
		}
	}()
	return clone, "http://" + l.Addr().String()
}

// toEtcd joins a connection with one to etcd, until either ends.
func (c *cluster) toEtcd(in net.Conn) {
	defer in.Close()
	var out net.Conn
	if err := c.under.Do(func() (err error) { out, err = net.Dial("tcp", strings.TrimPrefix(c.url, "http://")); return err }); err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	_, _ = io.Copy(in, out)
}
