//go:build flannel

package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// swapsAtRandom is a cluster of which hosts change what runs on them, with the plain model of it.
type swapsAtRandom struct {
	*cluster
	t       *testing.T
	rnd     *rand.Rand
	world   *world
	configs []string
	on      []*swapHost
	names   map[string]string // of hosts, by their node IDs
	unused  int               // slot
}

// swapHost is one host: its daemons, one for each network if they are flannelds, and a pod in each network.
type swapHost struct {
	*host
	index   int
	plain   *plainHost
	dir     string
	daemons []*process
	pods    []*pod
}

// TestFlanneldSwapsAtRandom swaps what runs on five hosts, in OVERLAYD_SWAPS random steps: flannelds, overlayds
// in either dataplane, or nothing, by every way that docs/from-flannel.md names and by kill -9; and hosts change their
// addresses. After every step the pods of all hosts that run something reach each other, and every
// link, address, route, nexthop, neighbour, FDB entry, traffic rule, file and key of the store is one that the plain
// model wants, and all of these are there. OVERLAYD_SEED repeats a run.
func TestFlanneldSwapsAtRandom(t *testing.T) {
	steps, seed := numberFrom(t, "OVERLAYD_SWAPS", 4), numberFrom(t, "OVERLAYD_SEED", rand.Uint64())
	t.Logf("OVERLAYD_SEED=%d OVERLAYD_SWAPS=%d repeats this", seed, steps)
	s := newSwapsAtRandom(t, 5, rand.New(rand.NewPCG(seed, 0)))
	s.check("the beginning")
	for step := range steps {
		began := time.Now()
		what := s.step()
		s.check(what)
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("step %d: %s: after %s all is as it should be", step, what, time.Since(began).Round(time.Millisecond))
	}
	for _, h := range s.on {
		if h.plain.daemon == "" {
			s.start(h, s.anyDaemon())
		}
	}
	s.check("the end")
	s.checkSoon("the records of daemons that were killed have gone", func() []string {
		must, _ := s.world.store(s.configs)
		return difference(must, nil, s.keys(s.names))
	})
}

// newSwapsAtRandom draws the network config and what runs at first.
func newSwapsAtRandom(t *testing.T, hosts int, rnd *rand.Rand) *swapsAtRandom {
	t.Helper()
	oneOf := func(n int) bool { return rnd.IntN(n) == 0 }
	w := &world{filter: []packetFilter{filterIPT, filterLegacy, filterNFT}[rnd.IntN(3)], dual: oneOf(3), direct: oneOf(3), masq: oneOf(2)}
	names := []string{""}
	if oneOf(4) {
		names = []string{"blue", "red"}
	}
	for n, name := range names {
		is := []string{fmt.Sprintf("10.%d.0.0/16", 5+n), fmt.Sprintf("fd00:%d::/48", 5+n)}[:w.families()]
		w.networks = append(w.networks, plainNetwork{name: name, vni: 1 + 9*n, is: is})
	}
	s := newSwaps(t, hosts, rnd, w)
	for _, h := range s.on {
		s.start(h, s.anyDaemon())
	}
	return s
}

// newSwaps makes the cluster of a world, with hosts on which nothing runs yet.
func newSwaps(t *testing.T, hosts int, rnd *rand.Rand, w *world) *swapsAtRandom {
	t.Helper()
	t.Logf("%s, direct %v, masquerading %v, networks %v", w.filter, w.direct, w.masq, w.networks)
	s := &swapsAtRandom{t: t, rnd: rnd, world: w, cluster: newClusterOn(t, []string{under4, under6}[:w.families()], hosts, ""),
		names: map[string]string{}, unused: 50}
	w.filter.use(s.cluster)
	for n, net := range w.networks {
		s.configs = append(s.configs, w.filter.in(configOf(net, w.direct)))
		s.put(s.prefix(n)+"/config", s.configs[n])
	}
	for i, h := range s.hosts {
		plain := &plainHost{name: h.name, slot: 2 + i, tables: make([]bool, 2)}
		for range w.networks {
			plain.overlays = append(plain.overlays, &plainOverlay{})
		}
		w.hosts = append(w.hosts, plain)
		s.on = append(s.on, &swapHost{host: h, index: i, plain: plain, dir: filepath.Dir(h.subnetFile)})
		forget := func() {
			for _, claim := range claims(h) {
				os.Remove(claim)
			}
		}
		forget() // what daemons of an earlier namespace with this number left
		t.Cleanup(forget)
	}
	return s
}

func configOf(n plainNetwork, direct bool) string {
	config := fmt.Sprintf(`{"Network":%q,`, n.is[0])
	if len(n.is) > 1 {
		config += fmt.Sprintf(`"EnableIPv6":true,"IPv6Network":%q,`, n.is[1])
	}
	return config + fmt.Sprintf(`"Backend":{"Type":"vxlan","VNI":%d,"DirectRouting":%t}}`, n.vni, direct)
}

// prefix is that of a network's keys.
func (s *swapsAtRandom) prefix(n int) string {
	return strings.TrimSuffix("/coreos.com/network/"+s.world.networks[n].name, "/")
}

// subnetFile is that of a network on a host.
func (s *swapsAtRandom) subnetFileOf(h *swapHost, n int) string {
	if name := s.world.networks[n].name; name != "" {
		return filepath.Join(h.dir, name+".env")
	}
	return h.host.subnetFile
}

func (s *swapsAtRandom) anyDaemon() string {
	return []string{modeFlanneld, modeKernel, modeUserspace}[s.rnd.IntN(3)]
}

func (s *swapsAtRandom) anyOverlayd() string {
	return []string{modeKernel, modeUserspace}[s.rnd.IntN(2)]
}

// start starts daemons on a host on which none runs, and waits until they serve.
func (s *swapsAtRandom) start(h *swapHost, daemon string) {
	s.t.Helper()
	if daemon == modeFlanneld {
		s.becomesFlannelds(h)
		return
	}
	s.launch(h, daemon)
	s.ready(h, daemon)
}

// becomesFlannelds starts flannelds. If the host was overlayd's, overlayd's traces go as docs/from-flannel.md says.
func (s *swapsAtRandom) becomesFlannelds(h *swapHost) {
	s.t.Helper()
	ours := h.plain.overlays[0].by == modeKernel
	if ours && s.rnd.IntN(3) == 0 {
		s.command(h, "cleanup", "--rules")
	}
	h.daemons = nil
	for n := range s.world.networks {
		s.startFlanneld(h, n)
	}
	s.setUp(h)
	s.world.starts(h.index, modeFlanneld)
	s.learn(h)
	if ours {
		s.command(h, "cleanup")
		s.world.cleansUp(h.index)
	}
}

// launch starts an overlayd.
func (s *swapsAtRandom) launch(h *swapHost, daemon string) {
	s.t.Helper()
	h.daemons = []*process{h.overlayd(append(s.flags(h), "--dataplane", daemon)...)}
}

// ready waits until an overlayd that was launched serves all networks.
func (s *swapsAtRandom) ready(h *swapHost, daemon string) {
	s.t.Helper()
	for _, net := range s.world.networks {
		ready := "msg=ready"
		if net.name != "" {
			ready += " network=" + net.name
		}
		h.daemons[0].waitLog(ready, patience)
	}
	s.setUp(h)
	s.world.starts(h.index, daemon)
	s.remember(h)
}

// flags are those of an overlayd on a host.
func (s *swapsAtRandom) flags(h *swapHost) []string {
	flags := []string{"--etcd-endpoints", s.url, fmt.Sprint("--ip-masq=", s.world.masq)}
	if s.world.networks[0].name != "" {
		return append(flags, "--networks", "blue,red", "--subnet-dir", h.dir)
	}
	return append(flags, "--subnet-file", h.host.subnetFile)
}

// command runs a subcommand of overlayd, which has to succeed.
func (s *swapsAtRandom) command(h *swapHost, words ...string) {
	s.t.Helper()
	args := append(words, "--subnet-file", h.host.subnetFile, "--subnet-dir", h.dir)
	if words[0] == "drain" {
		args = append(words, s.flags(h)...)
	}
	if p := h.overlayd(args...); p.wait(patience) != 0 {
		s.t.Errorf("%s: %v: exit code %d: %s", h.name, words, p.cmd.ProcessState.ExitCode(), p.text())
	}
}

func (s *swapsAtRandom) startFlanneld(h *swapHost, n int) {
	s.t.Helper()
	masq := s.world.masquerades(modeFlanneld)
	cmd := exec.Command(flanneldProgram(s.t), "-etcd-endpoints", s.url, "-etcd-prefix", s.prefix(n), "-iface", "eth0",
		"-subnet-file", s.subnetFileOf(h, n), fmt.Sprint("-ip-masq=", masq), fmt.Sprint("-iptables-forward-rules=", len(s.world.networks) == 1))
	cmd.Env = append(os.Environ(), "PATH="+s.path)
	p := startCommand(s.t, h.NS, h.name+" flanneld", cmd)
	h.daemons = append(h.daemons, p)
	p.waitLog("watching for new subnet leases", patience)
}

// setUp makes what a CNI plugin makes once there is a subnet.
func (s *swapsAtRandom) setUp(h *swapHost) {
	s.t.Helper()
	for n, o := range h.plain.overlays {
		on := *h.host
		on.subnetFile = s.subnetFileOf(h, n)
		var subnets []string
		for _, g := range on.gateways() {
			subnets = append(subnets, g.Masked().String())
		}
		if o.subnets == nil {
			o.subnets = subnets
			h.pods = append(h.pods, on.pod(n, 0))
			h.Must(func() error { return rtnl.SetSysctl(ipForward, "1") })
			if s.world.dual {
				h.Must(func() error { return rtnl.SetSysctl(ip6Forward, "1") })
			}
		} else if fmt.Sprint(o.subnets) != fmt.Sprint(subnets) {
			s.t.Fatalf("%s has %v, had %v", h.name, subnets, o.subnets)
		}
	}
}

// learn tells the model which MACs a flanneld has drawn.
func (s *swapsAtRandom) learn(h *swapHost) {
	s.t.Helper()
	for n, o := range h.plain.overlays {
		for f, mac := range o.macs {
			if mac == "" {
				h.Must(func() error {
					l, err := netlink.LinkByName(deviceName(f, s.world.networks[n].vni))
					if err == nil {
						mac = l.Attrs().HardwareAddr.String()
					}
					return err
				})
				s.world.learns(h.index, n, f, mac)
			}
		}
	}
}

// stop ends what runs on a host in some way.
func (s *swapsAtRandom) stop(h *swapHost, signal unix.Signal) {
	s.t.Helper()
	for _, p := range h.daemons {
		if code := p.stop(signal); signal == unix.SIGTERM && code != 0 {
			s.t.Errorf("%s: exit code %d", p.name, code)
		}
	}
	h.daemons = nil
	s.world.stops(h.index, signal == unix.SIGKILL)
}

// drain lets the kernel forward, and ends what runs on a host if anything does.
func (s *swapsAtRandom) drain(h *swapHost) {
	s.t.Helper()
	s.command(h, "drain", "--to=kernel")
	for _, p := range h.daemons {
		if code := p.wait(patience); code != 0 {
			s.t.Errorf("%s was drained: exit code %d", p.name, code)
		}
	}
	h.daemons = nil
	s.world.drainsToKernel(h.index)
}

// readdress gives hosts other addresses: slots[i] to the i-th.
func (s *swapsAtRandom) readdress(hosts []*swapHost, slots []int) {
	s.t.Helper()
	change := func(h *swapHost, slot int, do func(netlink.Link, *netlink.Addr) error) {
		for f := range s.world.families() {
			h.Must(func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				ip := net.ParseIP(address(f, slot))
				bits := [][2]int{{24, 32}, {64, 128}}[f]
				return do(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits[0], bits[1])}, Flags: []int{0, unix.IFA_F_NODAD}[f]})
			})
		}
	}
	for _, h := range hosts {
		change(h, h.plain.slot, netlink.AddrDel)
	}
	for i, h := range hosts {
		change(h, slots[i], netlink.AddrAdd)
		h.addr = netip.MustParseAddr(address(0, slots[i]))
		for f := range s.world.families() {
			h.DefaultRoute(address(f, 1))
		}
		s.under.Run("ip", "neigh", "flush", "dev", "br0")
		for _, other := range s.hosts {
			other.Run("ip", "neigh", "flush", "dev", "eth0")
		}
	}
	for i, h := range hosts {
		s.world.moves(h.index, slots[i])
	}
}

// check wants all pods of hosts with daemons to reach each other, and every object to be wanted, soon.
func (s *swapsAtRandom) check(when string) {
	s.t.Helper()
	s.meet()
	s.checkSoon(when, func() (diff []string) {
		for _, h := range s.on {
			for _, line := range s.differsOn(h) {
				diff = append(diff, fmt.Sprintf("%s (%s) %s", h.name, h.plain.daemon, line))
			}
		}
		return append(diff, s.differsInStore()...)
	})
}

// checkSoon wants a look to find no differences soon.
func (s *swapsAtRandom) checkSoon(when string, look func() []string) {
	s.t.Helper()
	eventually(s.t, patience, when+": every object is wanted, and none lacks", func() error {
		if diff := look(); len(diff) > 0 {
			return fmt.Errorf("\n\t%s", strings.Join(diff, "\n\t"))
		}
		return nil
	})
}

// differsOn tells how a host is not as the model wants it.
func (s *swapsAtRandom) differsOn(h *swapHost) []string {
	s.t.Helper()
	return difference(s.world.objects(h.index), s.world.mayBe(h.index), (&inventory{host: h.host, dir: h.dir}).take())
}

func (s *swapsAtRandom) differsInStore() []string {
	s.t.Helper()
	must, may := s.world.store(s.configs)
	return difference(must, may, s.keys(s.names))
}

// remember notes the node IDs of a host: its record in the store outlives the node file.
func (s *swapsAtRandom) remember(h *swapHost) {
	for n := range s.world.networks {
		if b, err := os.ReadFile(s.subnetFileOf(h, n) + ".node"); err == nil && len(b) > 32 {
			s.names[string(b[:32])] = h.name
		}
	}
}

func (s *swapsAtRandom) meet() {
	s.t.Helper()
	eventually(s.t, patience, "all pods reach each other", func() error {
		for _, from := range s.on {
			for _, to := range s.on {
				if from == to || from.plain.daemon == "" || to.plain.daemon == "" {
					continue
				}
				for n := range s.world.networks {
					for _, addr := range to.pods[n].addrs {
						if err := echoWithin(from.pods[n].NS, addr, 56, 100*time.Millisecond); err != nil {
							return fmt.Errorf("%s (%s) to %s (%s), network %d: %w", from.name, from.plain.daemon, to.name, to.plain.daemon, n, err)
						}
					}
				}
			}
		}
		return nil
	})
}
