package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// docExample is the example of flannel's own documentation.
const docExample = `{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0","Backend":{"Type":"vxlan","Port":7890}}`

// insideCase is a host whose routing and the overlay network have addresses in common.
type insideCase struct {
	name, under, config string
	prepare             func(h *host)
	split               bool // the userspace dataplane has a route for each subnet
	direct              bool // hosts reach pods by the underlay; pods keep their addresses in the whole network
}

func insideCases() []insideCase {
	ip := func(args string) func(*host) {
		return func(h *host) { h.Run("ip", strings.Fields(args)...) }
	}
	docker := func(h *host) {
		h.Run("ip", "link", "add", "docker0", "type", "bridge")
		h.Run("ip", "addr", "add", "10.42.0.1/16", "dev", "docker0")
		h.Run("ip", "link", "set", "docker0", "up")
	}
	const simple = `{"Network":"10.42.0.0/16"}`
	return []insideCase{
		{"flannel's example", "10.99.0.0/24", docExample, func(*host) {}, true, false},
		{"flannel's example, direct", "10.99.0.0/24", strings.Replace(docExample, `"vxlan"`, `"vxlan","DirectRouting":true`, 1), func(*host) {}, true, true},
		{"IPv6", "fd99::/64", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8"}`, func(*host) {}, true, false},
		{"docker0", under4, simple, docker, true, false},
		{"aggregate", under4, simple, ip("route add 10.42.0.0/16 via 192.0.2.1 proto static"), true, false},
		{"aggregate with a metric", under4, simple, ip("route add 10.42.0.0/16 via 192.0.2.1 proto static metric 50"), true, false},
		{"discard", under4, simple, ip("route add blackhole 10.42.0.0/16 proto static"), true, false},
		{"default route through it", "10.42.0.0/24", simple, ip("route replace default via 10.42.0.1"), true, false},
		{"on-link is the network", "10.42.0.0/16", simple, func(*host) {}, true, false},
		{"outside", under4, simple, func(*host) {}, false, false},
	}
}

// theirs is what of the host's configuration belongs to others.
func (h *host) theirs() string {
	var lines []string
	for _, family := range []string{"-4", "-6"} {
		for _, what := range []string{"addr", "route", "rule"} {
			for line := range strings.Lines(h.Run("ip", "-o", family, what)) {
				if !strings.Contains(line, "pod0") && !strings.Contains(line, "fe80") {
					lines = append(lines, strings.TrimSpace(line))
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestNetworkHoldsTheUnderlay: hosts whose own routing lies in the overlay network are ready and reach
// each other's pods, whatever the dataplane, and what belongs to others is afterwards as before.
func TestNetworkHoldsTheUnderlay(t *testing.T) {
	t.Parallel()
	for _, c := range insideCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := newClusterOn(t, []string{c.under}, 2, c.config)
			modes := [2]string{modeKernel, modeUserspace}
			before := map[*host]string{}
			var pods []*pod
			for i, h := range cl.hosts {
				c.prepare(h)
				before[h] = h.theirs()
				h.up("--dataplane", modes[i], "--ip-masq")
				pods = append(pods, h.pod(0, 0))
			}
			for i, p := range pods {
				awaitAll(t, cl.hosts[1-i].NS, p)
				awaitAll(t, pods[1-i].NS, p)
			}
			checkPair(t, cl.hosts[0], pods[0], cl.hosts[1], pods[1], 1<<20)
			if !c.direct {
				checkUnderlayOpen(t, cl, c.under, pods)
			} else if route := cl.hosts[1].Run("ip", "route", "get", pods[0].addr.String()); !strings.Contains(route, "via "+cl.hosts[0].addr.String()) {
				t.Errorf("no direct route: %s", route)
			}
			said := strings.Count(cl.hosts[1].daemon.text(), "one for each subnet instead")
			if (said == 1) != c.split || said > 1 {
				t.Errorf("routes for each subnet were announced %d times, want them: %v", said, c.split)
			}
			for _, h := range cl.hosts {
				if code := h.daemon.stop(unix.SIGTERM); code != 0 {
					t.Errorf("%s: exit code %d", h.name, code)
				}
				h.overlayd("cleanup", "--subnet-file", h.subnetFile).wait(patience)
				if after := h.theirs(); after != before[h] {
					t.Errorf("%s is not as before:\n%s\nwas:\n%s", h.name, after, before[h])
				}
			}
		})
	}
}

// checkUnderlayOpen: hosts reach each other, and pods reach what the hosts reach: the bridge that
// stands for everything outside knows no way to a pod, so that only a translated address is answered.
func checkUnderlayOpen(t *testing.T, c *cluster, under string, pods []*pod) {
	t.Helper()
	outside := netip.MustParsePrefix(under).Addr().Next()
	for i, h := range c.hosts {
		for _, try := range []struct {
			from *netnstest.NS
			to   netip.Addr
		}{{h.NS, c.hosts[1-i].addr}, {h.NS, outside}, {pods[i].NS, outside}} {
			if err := echo(try.from, try.to, 56); err != nil {
				t.Errorf("%s: %v", fmt.Sprint(h.name, " to ", try.to), err)
			}
		}
	}
}

// TestRoutesFollowOthers: the userspace dataplane gives way to a route of somebody else to the whole
// network when it comes, and has its own one again when that has gone.
func TestRoutesFollowOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, `{"Network":"10.42.0.0/16","SubnetMax":"10.42.254.0"}`)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	h := c.hosts[0]
	awaitAll(t, a.NS, b)
	m, err := startMeter(a.NS, b.NS, b.addr, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		do   string
		says string
		want string // the route to an address that nobody has
	}{
		{"ip route add 10.42.0.0/16 via 192.0.2.1 proto static", "one for each subnet instead", "dev eth0"},
		{"ip route del 10.42.0.0/16 via 192.0.2.1", "one for the whole network again", "dev flannel.1"},
		{"ip link add docker0 type bridge && ip addr add 10.42.0.1/16 dev docker0 && ip link set docker0 up", "dev docker0 proto kernel", "dev docker0"},
		{"ip link del docker0", "one for the whole network again", "dev flannel.1"},
	} {
		seen := strings.Count(h.daemon.text(), step.says)
		h.Run("sh", "-c", step.do)
		eventually(t, patience, step.says, func() error {
			if strings.Count(h.daemon.text(), step.says) == seen {
				return errors.New("not said yet")
			}
			return nil
		})
		eventually(t, patience, "route "+step.want, func() error {
			if got := h.Run("ip", "route", "get", "10.42.255.255"); !strings.Contains(got, step.want) {
				return errors.New(got)
			}
			return nil
		})
		eventually(t, promised(3*time.Second), step.do, func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) }) // it is said before it is done
	}
	lost := m.finish()
	t.Logf("%d packets were lost, 100 are sent in a second", lost)
	if lost > uint64(promised(600*time.Millisecond)/(10*time.Millisecond)) { // what comes before a new route of others has been noticed follows it
		t.Errorf("%d packets were lost", lost)
	}
}

// TestSwapInMixedNetwork: on a network that holds the underlay a host changes its dataplane and keeps
// its subnet. All that is lost is what comes while it restarts.
func TestSwapInMixedNetwork(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, []string{"10.99.0.0/24"}, 2, docExample)
	a, b := c.upPair([2]string{modeKernel, modeUserspace}, "--ip-masq")
	h, subnet := c.hosts[0], c.hosts[0].gateway()
	awaitAll(t, a.NS, b)
	for _, mode := range []string{modeUserspace, modeKernel} {
		m, err := startMeter(a.NS, b.NS, b.addr, 10*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		h.daemon.stop(unix.SIGTERM)
		h.up("--dataplane", mode, "--ip-masq")
		if got := h.gateway(); got != subnet {
			t.Fatalf("%s: subnet %s, was %s", mode, got, subnet)
		}
		awaitAll(t, a.NS, b)
		if lost := m.finish(); lost > uint64(promised(1500*time.Millisecond)/(10*time.Millisecond)) {
			t.Errorf("to %s: %d packets were lost, 100 are sent in a second", mode, lost)
		}
		checkNoLoss(t, h, a, c.hosts[1], b)
	}
}

// TestPublicIPInsideNetwork: a host whose address lies in the overlay network, and one whose does not,
// reach each other. The one inside is behind a router.
func TestPublicIPInsideNetwork(t *testing.T) {
	t.Parallel()
	for _, modes := range [][2]string{{modeKernel, modeUserspace}, {modeUserspace, modeKernel}} {
		t.Run(modes[0]+"-"+modes[1], func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, `{"Network":"10.42.0.0/16","SubnetMax":"10.42.99.0"}`)
			far := c.addHost(netip.MustParseAddr("10.42.200.11"))
			netnstest.Link(c.under, "far", far.NS, "eth0")
			c.under.Addr("far", "10.42.200.1/24")
			far.Addr("eth0", "10.42.200.11/24")
			far.DefaultRoute("10.42.200.1")
			forward(c.under)
			a, b := c.upPair(modes)
			awaitAll(t, a.NS, b)
			awaitAll(t, b.NS, a)
			checkPair(t, c.hosts[0], a, far, b, 1<<20)
		})
	}
}

// TestHostileSubnetInsideNetwork: a lease whose subnet holds what somebody needs of the underlay is
// refused by name, and costs nobody anything else.
func TestHostileSubnetInsideNetwork(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, []string{"10.99.0.0/16"}, 2, docExample)
	a, b := c.upPair([2]string{modeKernel, modeUserspace}, "--ip-masq")
	awaitAll(t, a.NS, b)
	m, err := startMeter(a.NS, b.NS, b.addr, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, subnet := range []string{"10.99.0.0-20", "10.99.0.0-24", "10.99.0.2-31", "10.96.0.0-14", "10.99.0.0-31"} {
		c.put(subnets+subnet, fmt.Sprintf(`{"PublicIP":"203.0.113.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:01:%02d"}}`, i+1, i+1))
	}
	for _, h := range c.hosts {
		h.daemon.waitLog("holds 10.99.0.", patience)
	}
	checkPair(t, c.hosts[0], a, c.hosts[1], b, 1<<20)
	checkUnderlayOpen(t, c, "10.99.0.0/16", []*pod{a, b})
	if lost := m.finish(); lost > 0 {
		t.Errorf("%d packets were lost", lost)
	}
}

// TestCheckConfigOnHost: what a host would do with a config is said before anything is started.
func TestCheckConfigOnHost(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	netnstest.LAN(t, "10.99.0.0/24", ns)
	for _, c := range []struct {
		name, config, flags string
		code                int
		says                []string
	}{
		{"flannel's example", docExample, "--iface=eth0", 0, []string{"public IPs 10.99.0.2", "kernel routes to 10.0.0.0/8: one for each subnet",
			"userspace routes to 10.0.0.0/8: one for each subnet: it holds 10.99.0.0/24 of the underlay", "10.99.0.2, the underlay address of this host"}},
		{"plain", `{"Network":"10.42.0.0/16"}`, "--iface=eth0 --public-ip=203.0.113.7", 0, []string{"public IPs 203.0.113.7", "userspace routes to 10.42.0.0/16: one"}},
		{"the public IP inside", `{"Network":"10.42.0.0/16"}`, "--public-ip=10.42.7.7 --iface=10.99.0.2", 0, []string{"one for each subnet: it holds 10.42.7.7 of the underlay", "10.42.7.7, the public IP of this host"}},
		{"kernel only", `{"Network":"10.42.0.0/16","Backend":{"GBP":true}}`, "--iface=eth0", 0, []string{"userspace refused: Backend.GBP"}},
		{"no subnet", `{"Network":"10.99.0.0/24","SubnetLen":26,"SubnetMin":"10.99.0.0","SubnetMax":"10.99.0.0"}`, "--iface=eth0", 1,
			[]string{"no dataplane of this host can carry the network", "every subnet that is left holds an address that this host needs of its underlay, as 10.99.0.2"}},
		{"no such interface", docExample, "--iface=eth7", 1, []string{"--iface eth7: no such interface"}},
		{"bad address", docExample, "--public-ip=x", exitUsage, []string{`--public-ip: "x"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			p := start(t, ns, "check", append(os.Environ(), asOverlayd+"=1"), append([]string{"check", "config", file}, strings.Fields(c.flags)...)...)
			code := p.wait(patience)
			flat := strings.Join(strings.Fields(p.text()), " ")
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, part := range c.says {
				if !strings.Contains(flat, part) {
					t.Errorf("does not say %q: %s", part, flat)
				}
			}
		})
	}
}
