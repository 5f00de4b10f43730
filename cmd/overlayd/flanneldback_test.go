//go:build flannel

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// recipe returns the commands of docs/from-flannel.md on flanneld and back, in their order.
func recipe(t *testing.T) (commands []string) {
	t.Helper()
	if commands = documented(t, "docs/from-flannel.md", "TestFlanneldAndBack"); len(commands) != 5 {
		t.Fatalf("docs/from-flannel.md has the commands %q", commands)
	}
	return commands
}

// back is a host that goes from flanneld to overlayd and back.
type back struct {
	*host
	t                      *testing.T
	mode                   string
	overlaydOn, flanneldOn func(h *host) // start one
}

// backOnEtcd is a host whose leases are in etcd.
func backOnEtcd(t *testing.T, h *host, mode string) *back {
	return &back{h, t, mode, func(h *host) { h.up("--dataplane", mode, "--ip-masq") }, func(h *host) { h.flanneld() }}
}

// do does what a command of the recipe says.
func (b *back) do(command string) {
	b.t.Helper()
	switch command {
	case "systemctl stop flanneld", "systemctl stop overlayd":
		if command == "systemctl stop overlayd" && b.mode == modeUserspace {
			b.drainToKernel()
			return
		}
		if code := b.daemon.stop(unix.SIGTERM); code != 0 {
			b.t.Errorf("%s: exit code %d", command, code)
		}
	case "systemctl start overlayd":
		b.overlaydOn(b.host)
	case "systemctl start flanneld":
		b.flanneldOn(b.host)
	case "overlayd cleanup":
		b.cleanup()
	default:
		b.t.Fatalf("the recipe says %q", command)
	}
}

// cleanup wants the device and the subnet file to be kept, with a reason each.
func (b *back) cleanup() {
	b.t.Helper()
	p := b.overlayd("cleanup", "--subnet-file", b.subnetFile)
	if code := p.wait(patience); code != 0 {
		b.t.Errorf("cleanup: exit code %d", code)
	}
	b.t.Logf("cleanup:\n%s", p.text())
	for _, want := range []string{"kept " + b.subnetFile + ": flanneld uses it (process ", "kept device flannel.1: flanneld uses it ("} {
		if !strings.Contains(p.text(), want) {
			b.t.Errorf("cleanup did not say %q", want)
		}
	}
	if left, err := filepath.Glob(filepath.Dir(b.subnetFile) + "/*"); err != nil || len(left) != 1 {
		b.t.Errorf("files %q, %v", left, err)
	}
}

// comparable is the state of the host without what flanneld chooses at random.
func (b *back) comparable() string {
	b.t.Helper()
	text := b.state()
	for _, mac := range regexp.MustCompile(`flannel(?:-v6)?\.1.* link/ether (\S+)`).FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, mac[1], "MAC")
	}
	for _, local := range regexp.MustCompile(`flannel(?:-v6)?\.1 +inet6 (fe80:\S+)/`).FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, local[1], "LINKLOCAL")
	}
	objects, rules, _ := strings.Cut(regexp.MustCompile(`: \d+: flannel`).ReplaceAllString(text, ": N: flannel"), "\ntable ")
	lines := strings.Split(objects, "\n")
	slices.Sort(lines)
	saved := b.Run("iptables-save") + "\n" + b.Run("ip6tables-save")
	saved = regexp.MustCompile(`(?m)^#.*$| \[\d+:\d+\]$`).ReplaceAllString(saved, "") // times and counters
	settings := b.Run("sh", "-c", "grep -r . /proc/sys/net/ipv4/conf/flannel.1 /proc/sys/net/ipv6/conf/flannel*.1 2>/dev/null || true")
	return strings.Join(lines, "\n") + "\ntable " + rules + "\n" + saved + "\n" + settings
}

// TestFlanneldAndBack: the recipe of docs/from-flannel.md from a real flanneld to overlayd and back. With the kernel
// dataplane no datagram of 100 a second in three directions is lost, with userspace hardly any. Then the host is as before.
func TestFlanneldAndBack(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		filter     packetFilter
		config     string
		under      []string
	}{
		{"iptables", modeKernel, filterIPT, testNetwork, []string{under4}},
		{"legacy", modeKernel, filterLegacy, testNetwork, []string{under4}},
		{"nftables", modeKernel, filterNFT, testNetwork, []string{under4}},
		{"direct", modeKernel, filterIPT, directNetwork, []string{under4}},
		{"dual", modeKernel, filterIPT, dualNetwork, []string{under4, under6}},
		{"userspace", modeUserspace, filterIPT, testNetwork, []string{under4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := newClusterOn(t, c.under, 3, c.filter.in(c.config))
			c.filter.use(cluster)
			h := backOnEtcd(t, cluster.hosts[0], c.mode)
			h.flanneld()
			cluster.hosts[1].flanneld()
			cluster.hosts[2].up("--dataplane", modeKernel, "--ip-masq")
			h.goAndReturn(cluster.hosts[1], cluster.hosts[2])
		})
	}
}

// TestFlanneldBeforeOverlaydStops: of a flanneld that is started while overlayd runs, log, status and doctor tell. When overlayd stops, and
// cleanup is run, it is given everything that it needs: no datagram of 1000 a second is lost.
func TestFlanneldBeforeOverlaydStops(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter packetFilter
		config string
		under  []string
	}{
		{"iptables", filterIPT, testNetwork, []string{under4}},
		{"nftables", filterNFT, testNetwork, []string{under4}},
		{"direct", filterIPT, directNetwork, []string{under4}},
		{"dual", filterIPT, dualNetwork, []string{under4, under6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := newClusterOn(t, c.under, 2, c.filter.in(c.config))
			c.filter.use(cluster)
			h, peer := backOnEtcd(t, cluster.hosts[0], modeKernel), cluster.hosts[1]
			peer.flanneld()
			h.do("systemctl start overlayd")
			overlayd := h.daemon
			a, p := h.pod(0, 0), peer.pod(0, 0)
			warmUp(t, a, p)
			there, back := startUnboundedMeters(t, a, p)
			h.do("systemctl start flanneld")
			flanneld := h.daemon
			overlayd.waitLog("runs for the same network", patience) // after its routes
			h.daemon = overlayd
			h.tellsOfFlanneld(flanneld)
			h.do("systemctl stop overlayd")
			h.daemon = flanneld
			h.cleanup()
			for _, m := range []*meter{there, back} {
				waitTraffic(t, m, 50)
				if lost := m.finish(); lost > 0 {
					t.Errorf("%d of %d lost, longest gap %s", lost, m.sent.Load(), time.Duration(m.gap.Load()))
				}
			}
			if left := h.state(); strings.Contains(left, "overlayd") || strings.Contains(left, "proto 211") {
				t.Errorf("overlayd's is left:\n%s", left)
			}
		})
	}
}

// tellsOfFlanneld wants status and doctor to name a flanneld that runs beside the daemon.
func (b *back) tellsOfFlanneld(flanneld *process) {
	b.t.Helper()
	want := fmt.Sprintf("flanneld (process %d) runs for the same network", flanneld.cmd.Process.Pid)
	for command, start := range map[string]string{"status": "degraded: ", "doctor": "fail     flanneld "} {
		p := b.overlayd(command, "--subnet-file", b.subnetFile)
		p.wait(patience)
		if !strings.Contains(p.text(), want) || !strings.Contains(p.text(), start) {
			b.t.Errorf("%s does not say %q", command, want)
		}
	}
}

// TestFlanneldBesideUserspace: a flanneld that is started beside the userspace dataplane deletes its device. The log names it, and what to do.
func TestFlanneldBesideUserspace(t *testing.T) {
	cluster := newCluster(t, 2, testNetwork)
	h, peer := backOnEtcd(t, cluster.hosts[0], modeUserspace), cluster.hosts[1]
	peer.flanneld()
	h.do("systemctl start overlayd")
	overlayd := h.daemon
	h.do("systemctl start flanneld")
	overlayd.waitLog(fmt.Sprintf("flanneld (process %d) runs for the same network", h.daemon.cmd.Process.Pid), patience)
}

// goAndReturn follows the recipe, while a pod of the host, which flanneld serves, talks with those of two others in three directions.
func (b *back) goAndReturn(peer, third *host) {
	b.t.Helper()
	a, p, q := b.pod(0, 0), peer.pod(0, 0), third.pod(0, 0)
	warmUp(b.t, a, p)
	warmUp(b.t, a, q)
	before := b.comparable()
	var meters []*meter
	for _, way := range [][2]*pod{{a, p}, {p, a}, {q, a}} {
		to := way[1].addrs[len(way[1].addrs)-1]
		m, err := startMeter(way[0].NS, way[1].NS, to, pace100)
		if err != nil {
			b.t.Fatal(err)
		}
		meters = append(meters, m)
	}
	for _, command := range recipe(b.t) {
		b.do(command)
		for _, m := range meters {
			waitTraffic(b.t, m, 30)
		}
	}
	limit := mayLose(modeFlanneld, b.mode) + mayLose(b.mode, modeFlanneld)
	for i, m := range meters {
		lost := m.finish()
		b.t.Logf("direction %d: %d of %d lost, longest gap %s", i, lost, m.sent.Load(), time.Duration(m.gap.Load()))
		if lost > limit {
			b.t.Errorf("direction %d: %d of %d lost, want at most %d", i, lost, m.sent.Load(), limit)
		}
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(b.comparable(), "\n")); diff != "" {
		b.t.Errorf("the host after the way back (-only ever flanneld +now):\n%s", diff)
	}
}

// TestFlanneldAfterOverlayd: a host that began with overlayd, and became flanneld's by the recipe, is as one that
// never had an overlayd.
func TestFlanneldAfterOverlayd(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter packetFilter
		config string
		under  []string
	}{
		{"iptables", filterIPT, testNetwork, []string{under4}},
		{"nftables", filterNFT, testNetwork, []string{under4}},
		{"dual", filterIPT, dualNetwork, []string{under4, under6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := newClusterOn(t, c.under, 2, c.filter.in(c.config))
			c.filter.use(cluster)
			h, peer := backOnEtcd(t, cluster.hosts[0], modeKernel), cluster.hosts[1]
			peer.flanneld()
			h.do("systemctl start overlayd")
			a, p := h.pod(0, 0), peer.pod(0, 0)
			warmUp(t, a, p)
			for _, command := range recipe(t)[2:] {
				h.do(command)
			}
			warmUp(t, a, p)
			after := h.comparable()

			h.do("systemctl stop flanneld")
			for _, device := range []string{"flannel.1", "flannel-v6.1"}[:len(c.under)] {
				h.Run("ip", "link", "del", device)
			}
			h.Run("nft", "flush", "ruleset")
			h.do("systemctl start flanneld")
			warmUp(t, a, p)
			if diff := cmp.Diff(strings.Split(h.comparable(), "\n"), strings.Split(after, "\n")); diff != "" {
				t.Errorf("-only ever flanneld +after overlayd:\n%s", diff)
			}
		})
	}
}

// TestFlanneldsBecomeOneDaemon: two flannelds of one host, with a prefix and VNI each, are replaced by one
// overlayd in userspace mode that serves both networks, and keeps their subnets.
func TestFlanneldsBecomeOneDaemon(t *testing.T) {
	c := newCluster(t, 2, "")
	names := []string{"blue", "red"}
	c.put("/coreos.com/network/blue/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10}}`)
	c.put("/coreos.com/network/red/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":20}}`)
	var pods [2][2]*pod
	var daemons []*process
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, name := range names {
		for j, h := range c.hosts {
			n := h.on(dirs[j], name)
			n.flanneld("-etcd-prefix", "/coreos.com/network/"+name, "-ip-masq=false")
			pods[i][j] = n.pod(i, 0)
			if j == 0 {
				daemons = append(daemons, n.daemon)
			}
		}
		warmUp(t, pods[i][0], pods[i][1])
	}
	for _, d := range daemons {
		d.stop(unix.SIGTERM)
	}
	h, began := c.hosts[0], time.Now()
	h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", modeUserspace, "--networks=blue,red", "--subnet-dir", dirs[0])
	for i, name := range names {
		h.daemon.waitLog("msg=ready network="+name, patience)
		if got := h.on(dirs[0], name).gateway().Masked(); !got.Contains(pods[i][0].addr) {
			t.Errorf("%s has subnet %s, a pod has %s", name, got, pods[i][0].addr)
		}
	}
	took := time.Since(began)
	if t.Logf("ready after %s", took.Round(time.Millisecond)); took > promised(2*time.Second) {
		t.Errorf("ready after %s, want 2s at most", took)
	}
	for i := range names {
		warmUp(t, pods[i][0], pods[i][1])
	}
}
