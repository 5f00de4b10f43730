package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seededFault is something that keeps an overlay from working, and what overlayd says of it.
type seededFault struct {
	name   string
	only   string // of the dataplanes; empty: both
	do     func(n *nineFaults) (undo func())
	healed bool // at once: doctor has nothing to say
	self   bool // the guilty host suffers, too
	seen   bool // nobody is guilty: doctor names it on the host that suffers
}

// nineFaults are two hosts, the second of which is guilty.
type nineFaults struct {
	*cluster
	mode            string
	suffers, guilty *host
	interval        string
	subnet          string                              // of the guilty one
	also            func(suffers *host, verdict string) // may be nil
}

func seededFaults() []seededFault {
	return []seededFault{
		{name: "port blocked", do: func(n *nineFaults) func() {
			return n.drops("type filter hook input priority 0; udp dport 8472 drop;")
		}},
		{name: "path MTU", do: func(n *nineFaults) func() {
			return n.setMTU("1400", "1500")
		}, seen: true},
		{name: "etcd killed", do: func(n *nineFaults) func() {
			n.etcd.stop(unix.SIGKILL)
			return n.runEtcd
		}, seen: true},
		{name: "MAC rewritten", healed: true, only: modeKernel, do: func(n *nineFaults) func() {
			n.suffers.Run("ip", "link", "set", "flannel.1", "address", "0e:00:00:00:00:99")
			return func() {}
		}},
		{name: "neighbour rewritten", healed: true, only: modeKernel, do: func(n *nineFaults) func() {
			n.suffers.Run("ip", "neigh", "replace", strings.TrimSuffix(n.subnet, "/24"), "lladdr", "0e:00:00:00:00:98", "dev", "flannel.1", "nud", "permanent")
			return func() {}
		}},
		{name: "route deleted", healed: true, only: modeUserspace, do: func(n *nineFaults) func() {
			n.suffers.Run("ip", "route", "del", "10.5.0.0/16")
			return func() {}
		}},
		{name: "peer killed", only: modeUserspace, do: func(n *nineFaults) func() {
			n.guilty.daemon.stop(unix.SIGKILL)
			return func() { n.up(n.guilty) }
		}},
		{name: "peer killed, which forwards", only: modeKernel, do: func(n *nineFaults) func() {
			n.guilty.daemon.stop(unix.SIGKILL)
			return func() { n.up(n.guilty) }
		}},
		{name: "overlapping lease", do: func(n *nineFaults) func() {
			key := subnets + strings.Replace(netip.PrefixFrom(n.suffers.gateway().Addr(), 25).Masked().String(), "/", "-", 1)
			n.put(key, `{"PublicIP":"192.0.2.77","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:77"}}`)
			return func() { n.delete(key) }
		}, seen: true},
		{name: "strict rp_filter", do: func(n *nineFaults) func() {
			// rp_filter drops ARP requests too. What is said of the peer would depend on when the neighbour entry ages.
			n.keepNeighbour("permanent")
			n.guilty.Run("ip", "link", "add", "aside", "type", "veth", "peer", "name", "besides")
			n.guilty.Run("ip", "link", "set", "aside", "up")
			n.guilty.Run("sysctl", "-qw", "net.ipv4.conf.eth0.rp_filter=1", "net.ipv4.conf.all.rp_filter=1")
			n.guilty.Run("ip", "route", "add", n.suffers.addr.String(), "dev", "aside")
			return func() {
				n.keepNeighbour("stale")
				n.guilty.Run("ip", "link", "del", "aside")
				n.guilty.Run("sysctl", "-qw", "net.ipv4.conf.eth0.rp_filter=0", "net.ipv4.conf.all.rp_filter=0")
			}
		}},
		{name: "FORWARD drop, inet", self: true, do: func(n *nineFaults) func() {
			return n.drops("type filter hook forward priority 0; policy drop;")
		}},
		{name: "FORWARD drop, ip", self: true, do: func(n *nineFaults) func() {
			nft(n.t, n.guilty.NS, "table ip seeded { chain c { type filter hook forward priority 0; ip daddr 10.5.0.0/16 drop; }; }")
			return func() { n.guilty.Run("nft", "delete", "table", "ip", "seeded") }
		}},
		{name: "forwarding off, and read-only", do: func(n *nineFaults) func() {
			n.guilty.daemon.stop(unix.SIGTERM)
			n.guilty.Must(func() error { return os.WriteFile("/proc/sys/"+ipForward, []byte("0"), 0) })
			n.startReadOnly()
			return func() {
				n.guilty.daemon.stop(unix.SIGTERM)
				n.up(n.guilty)
			}
		}},
	}
}

// TestNineFaults: what keeps an overlay from working is named on the host that suffers and on the guilty one, with what to do
// (testdata/ninefaults; -update writes it), and is over after it. OVERLAYD_PROBES is the time between probes; the default is short.
func TestNineFaults(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			seedFaults(t, mode, nil)
		})
	}
}

// seedFaults seeds one fault after the other. also looks at what the host that suffers says besides, whose status has that verdict.
func seedFaults(t *testing.T, mode string, also func(suffers *host, verdict string)) {
	t.Helper()
	c := newCluster(t, 2, testNetwork)
	n := &nineFaults{cluster: c, mode: mode, also: also, suffers: c.hosts[0], guilty: c.hosts[1], interval: durationFrom(t, "OVERLAYD_PROBES", 400*time.Millisecond).String()}
	for _, h := range c.hosts {
		n.up(h)
	}
	n.subnet = n.guilty.gateway().Masked().String()
	n.healthy("at first")
	for _, f := range seededFaults() {
		if f.only == "" || f.only == mode {
			n.check(f)
		}
	}
}

// check seeds a fault, looks for what is said of it, and undoes it.
func (n *nineFaults) check(f seededFault) {
	n.t.Helper()
	begin := time.Now()
	undo := f.do(n)
	h := n.suffers
	if f.self {
		h = n.guilty
	}
	n.named(f, h)
	if n.also != nil {
		_, text := n.run(h, "status", "--brief")
		n.also(h, strings.TrimSpace(text))
	}
	n.t.Logf("%s: named after %s", f.name, time.Since(begin).Round(10*time.Millisecond))
	undo()
	n.healthy(f.name + " is over")
}

// run runs a command of overlayd on a host.
func (n *nineFaults) run(h *host, command string, args ...string) (code int, text string) {
	n.t.Helper()
	var out strings.Builder
	cmd := exec.Command("/proc/self/exe", append([]string{command, "--subnet-file", h.subnetFile}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), asOverlayd+"=1"), &out, &out
	h.Must(cmd.Start)
	_ = cmd.Wait() // its exit code says more
	return cmd.ProcessState.ExitCode(), out.String()
}

// healthy waits until both hosts say that they are.
func (n *nineFaults) healthy(when string) {
	n.t.Helper()
	for _, h := range n.hosts {
		eventually(n.t, 2*patience, h.name+" is healthy: "+when, func() error {
			if code, text := n.run(h, "status"); code != 0 || !strings.HasPrefix(text, "healthy: 1 peer") || !strings.Contains(text, "yes") {
				return errors.New(text)
			}
			if code, text := n.run(h, "doctor"); code != 0 {
				return errors.New(text)
			}
			return nil
		})
	}
}

func (n *nineFaults) args() []string {
	return []string{"--dataplane", n.mode, "--probe-interval", n.interval, "--metrics-port=9799"}
}

func (n *nineFaults) up(h *host) { h.up(n.args()...) }

// drops loads a chain on the guilty host.
func (n *nineFaults) drops(chain string) (undo func()) {
	nft(n.t, n.guilty.NS, "table inet seeded { chain c { "+chain+" }; }")
	return func() { n.guilty.Run("nft", "delete", "table", "inet", "seeded") }
}

// keepNeighbour gives the suffering host's entry of the guilty one another state.
func (n *nineFaults) keepNeighbour(state string) {
	n.suffers.Run("sh", "-c", fmt.Sprintf("set -- $(ip neigh show %[1]s dev eth0); ip neigh replace %[1]s lladdr $3 dev eth0 nud %[2]s", n.guilty.addr, state))
}

// setMTU makes the way to the guilty host narrower, and neither end knows.
func (n *nineFaults) setMTU(narrow, wide string) (undo func()) {
	const port = "port1" // the second host's
	n.under.Run("ip", "link", "set", port, "mtu", narrow)
	return func() { n.under.Run("ip", "link", "set", port, "mtu", wide) }
}

// startReadOnly starts the guilty host's daemon where it cannot change sysctls.
func (n *nineFaults) startReadOnly() {
	n.t.Helper()
	h := n.guilty
	script := `mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0" "$@"`
	args := append([]string{"-m", "sh", "-c", script, "/proc/self/exe", "--etcd-endpoints", n.url, "--subnet-file", h.subnetFile}, n.args()...)
	exe, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	args[4] = exe
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), asOverlayd+"=1")
	h.daemon = startCommand(n.t, h.NS, h.name, cmd)
	h.daemon.waitLog("msg=ready", patience)
}
