package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// configCase is a network config, and what the dataplanes make of it: they serve it, or refuse it
// with a sentence of which this is a part.
type configCase struct {
	name, config      string
	under             string // prefixes with a comma; empty: under4
	kernel, userspace string // why the dataplane refuses it; empty: it serves it
	second            string // why a second host gets no lease; empty: it gets one
	quiet             bool   // no packets: nothing carries them
	flanneld          bool   // a flanneld serves it as vxlan, too
}

// vxlan completes the JSON of a config that has these keys besides.
func vxlan(keys string) string { return `{"Network":"10.42.0.0/16",` + keys + `}` }

// backend is vxlan with keys of Backend.
func backend(keys string) string { return vxlan(`"Backend":{"Type":"vxlan",` + keys + `}`) }

// configCases are those of facts beside a flanneld, 48 in all.
func configCases() []configCase {
	both := under4 + "," + under6
	same := func(name, config, under string) configCase {
		return configCase{name: name, config: config, under: under, flanneld: true}
	}
	refused := func(name, config, why string) configCase {
		return configCase{name: name, config: config, under: both, kernel: why, userspace: why}
	}
	network := func(prefix string) string { return `{"Network":"` + prefix + `","Backend":{"Type":"vxlan"}}` }
	cases := []configCase{
		same("type in capitals", vxlan(`"Backend":{"Type":"VXLAN"}`), ""),
		same("keys in lower case", `{"network":"10.42.0.0/16","subnetlen":25,"backend":{"type":"vxlan","vni":7}}`, ""),
		same("unmasked network", network("192.168.5.0/16"), ""),
		same("on-link prefix around it", network("10.99.128.0/17"), "10.99.0.0/16"),
		same("VNI and port", backend(`"VNI":4096,"Port":4789`), ""),
		same("keys of Windows", backend(`"Name":"x","MacPrefix":"0E-2A"`), ""),
		same("network of 24 bits", network("10.42.7.0/24"), ""),
		same("network of 28 bits", network("10.42.7.0/28"), ""),
		same("SubnetLen 30", vxlan(`"SubnetLen":30,"Backend":{"Type":"vxlan"}`), ""),
		same("SubnetLen 29", vxlan(`"SubnetLen":29,"Backend":{"Type":"vxlan"}`), ""),
		same("first subnet", vxlan(`"SubnetMin":"10.42.0.0","Backend":{"Type":"vxlan"}`), ""),
		same("MTU 1400", backend(`"MTU":1400`), ""),
		same("MTU 9000", backend(`"MTU":9000`), ""),
		same("DirectRouting", backend(`"DirectRouting":true`), ""),
		same("nftables", vxlan(`"EnableNFTables":true,"Backend":{"Type":"vxlan"}`), ""),
		same("dual-stack", vxlan(`"EnableIPv6":true,"IPv6Network":"fd00:5::/56","Backend":{"Type":"vxlan"}`), both),
		same("dual-stack, long subnets", vxlan(`"EnableIPv6":true,"IPv6Network":"fd00:5::/112","IPv6SubnetLen":120,"Backend":{"Type":"vxlan"}`), both),
		same("100.64.0.0/10", network("100.64.0.0/10"), ""),
		same("240.0.0.0/8", network("240.0.0.0/8"), ""),
		same("172.17.0.0/16", network("172.17.0.0/16"), ""),
		same("unknown keys", vxlan(`"Foo":1,"Backend":{"Type":"vxlan","Bar":[1,2]}`), ""),
		same("trailing newline", network("10.42.0.0/16")+"\n", ""),
		same("three subnets", network("10.42.4.0/22"), ""),
		same("10.0.0.0/8 over 10.99", docExample, "10.99.0.0/24"),
		same("10.0.0.0/8 over 10.99, all subnets", `{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`, "10.99.0.0/16"),
		same("fd00::/8 over fd99", vxlan(`"EnableIPv6":true,"IPv6Network":"fd00::/8","Backend":{"Type":"vxlan"}`), under4+",fd99::/64"),
		same("169.254.0.0/16", network("169.254.0.0/16"), ""),
		same("VNI 0", backend(`"VNI":0`), ""),
		{name: "Backend without a type", config: vxlan(`"Backend":{}`)},
		{name: "bounds of nothing", config: vxlan(`"SubnetMin":null,"SubnetMax":"","Backend":{"Type":"vxlan"}`)},
		{name: "no Backend", config: `{"Network":"10.42.0.0/16"}`},
		{name: "IPv6 only", config: `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`, under: under6},
		{name: "one subnet", config: vxlan(`"SubnetMin":"10.42.9.0","SubnetMax":"10.42.9.0","Backend":{"Type":"vxlan"}`), second: "no free subnet in the network"},
		{name: "GBP", config: backend(`"GBP":true`), userspace: "Backend.GBP: the userspace dataplane has no group policy", flanneld: true},
		{name: "Learning", config: backend(`"Learning":true`), userspace: "Backend.Learning: the userspace dataplane does not learn addresses", flanneld: true},
		refused("Port 70000", backend(`"Port":70000`), "Backend.Port 70000 is not in 1..65535: write 4464"),
		refused("MTU 100", backend(`"MTU":100`), "Backend.MTU 100 is not in 118..65535"),
		refused("VNI as text", backend(`"VNI":"1"`), `\"Backend.VNI\": want a whole number, got JSON string`),
		refused("VNI too long for a name", backend(`"VNI":16777215`), "Backend.VNI: 16777215: want at most 9999999, or the name of the device is too long"),
		refused("byte order mark", "\ufeff"+network("10.42.0.0/16"), "read JSON: invalid character"),
		refused("SubnetLen as text", vxlan(`"SubnetLen":"24"`), `\"SubnetLen\": want a whole number from 0, got JSON string`),
		refused("IPv6 in 1300 bytes", vxlan(`"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan","MTU":1300}`), "EnableIPv6: the overlay has an MTU of 1230 here, and IPv6 needs 1280"),
	}
	for _, kind := range []string{"udp", "ipip", "wireguard", "extension"} {
		cases = append(cases, refused(kind, vxlan(`"Backend":{"Type":"`+kind+`"}`), `backend type \"`+kind+`\" is not supported: use`))
	}
	for _, kind := range []string{"host-gw", "alloc"} {
		cases = append(cases, configCase{name: kind, config: vxlan(`"Backend":{"Type":"` + kind + `"}`), quiet: kind == "alloc"})
	}
	return cases
}

// drawn returns some of the cases, or all if OVERLAYD_CONFIGS is all, as in make test-long.
func drawn(t *testing.T, cases []configCase, n int) []configCase {
	t.Helper()
	if os.Getenv("OVERLAYD_CONFIGS") == "all" {
		return cases
	}
	seed, err := strconv.ParseUint(os.Getenv("OVERLAYD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("OVERLAYD_SEED=%d", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases[:min(n, len(cases))]
}

// TestConfigs: each config is served by both dataplanes without a loss, or refused with a sentence that
// names why; none waits in silence.
func TestConfigs(t *testing.T) {
	t.Parallel()
	cases := configCases()
	if len(cases) != 48 {
		t.Errorf("%d cases, want 48", len(cases))
	}
	for _, c := range drawn(t, cases, 5) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

// cluster makes the hosts of a case.
func (c configCase) cluster(t *testing.T, hosts int) *cluster {
	t.Helper()
	under := c.under
	if under == "" {
		under = under4
	}
	return newClusterOn(t, strings.Split(under, ","), hosts, c.config)
}

func (c configCase) run(t *testing.T) {
	modes := []string{modeKernel, modeUserspace}
	why := []string{c.kernel, c.userspace}
	cl := c.cluster(t, len(modes))
	served := true
	for i, h := range cl.hosts {
		if why[i] == "" {
			continue
		}
		h.start("--dataplane", modes[i]).waitLog(why[i], patience)
		h.daemon.stop(unix.SIGTERM)
		modes[i], served = modeKernel, c.kernel == ""
	}
	if !served {
		return
	}
	if c.second != "" {
		cl.hosts[0].up("--dataplane", modes[0])
		cl.hosts[1].start("--dataplane", modes[1]).waitLog(c.second, patience)
		return
	}
	var pods []*pod
	for i, h := range cl.hosts {
		h.up("--dataplane", modes[i], "--ip-masq")
		pods = append(pods, h.pod(0, 0))
	}
	if !c.quiet {
		checkNoLoss(t, cl.hosts[0], pods[0], cl.hosts[1], pods[1])
	}
}

// checkNoLoss pings the pods from pods and hosts, both ways, by each address and with short and long packets.
func checkNoLoss(t *testing.T, hostA *host, a *pod, hostB *host, b *pod) {
	t.Helper()
	for _, way := range []struct {
		from *netnstest.NS
		to   *pod
	}{{a.NS, b}, {b.NS, a}, {hostA.NS, b}, {hostB.NS, a}} {
		awaitAll(t, way.from, way.to)
		for _, addr := range way.to.addrs {
			lost, err := losses(way.from, addr)
			if lost > 0 {
				t.Errorf("to %s: %d of %d are lost, first %v", addr, lost, 2*pings, err)
			}
		}
	}
}

// pings is how many of each size losses sends.
const pings = 10

func losses(from *netnstest.NS, to netip.Addr) (lost int, first error) {
	for i := range 2 * pings {
		if err := echo(from, to, []int{56, 4000}[i%2]); err != nil {
			lost++
			if first == nil {
				first = fmt.Errorf("ping %d: %w", i, err)
			}
		}
	}
	return lost, first
}
