package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestFlagEffects: what flags do to a host, seen from outside, and undone by cleanup.
func TestFlagEffects(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newClusterOn(t, []string{under4, under6}, 1, dualNetwork)
			h := c.hosts[0]
			h.up("--dataplane", mode, "--ip-masq", "--ip-blackhole-route", "--workload-address", "--healthz-ip", "127.0.0.1", "--healthz-port", "8081")
			if h.env("FLANNEL_IPMASQ") != "true" {
				t.Error("FLANNEL_IPMASQ is not true")
			}
			for _, gw := range h.gateways() {
				h.Must(func() error { return hasBlackhole(gw.Masked()) })
				h.Must(func() error { return hasOverlayAddr(gw.Addr()) })
				if err := echo(h.NS, gw.Addr(), 56); err != nil {
					t.Errorf("workload address: %v", err)
				}
			}
			for path, want := range map[string]string{"/healthz": "200 overlayd is running", "/readyz": "200 overlayd is ready", "/": "404"} {
				if got := get(t, h, "127.0.0.1:8081", path); !strings.HasPrefix(got, want) {
					t.Errorf("GET %s: %s, want %s", path, got, want)
				}
			}
			rules := h.rules()
			if !strings.Contains(rules, "OVERLAYD") && !strings.Contains(rules, "overlayd") {
				t.Errorf("no rules:\n%s", rules)
			}
			h.daemon.stop(unix.SIGTERM)
			p := h.overlayd("cleanup", "--subnet-file", h.subnetFile)
			if code := p.wait(patience); code != 0 {
				t.Errorf("cleanup: exit code %d: %s", code, p.text())
			}
			if rules := strings.ToLower(h.rules()); strings.Contains(rules, "overlayd") {
				t.Errorf("rules are left:\n%s", rules)
			}
			h.Must(func() error {
				routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: rtnl.RouteProtocol, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
				if err == nil && len(routes) > 0 {
					err = fmt.Errorf("routes are left: %v", routes)
				}
				return err
			})
		})
	}
}

// TestDirectRouting: peers on the same link are reached by a plain route, in either mode, and again
// by the overlay when the config says so; nothing is lost meanwhile but what is in flight.
func TestDirectRouting(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			direct := strings.Replace(testNetwork, `"vxlan"`, `"vxlan","DirectRouting":true`, 1)
			c := newCluster(t, 2, direct)
			a, b := c.upPair([2]string{mode, modeKernel})
			await := func(link string) {
				t.Helper()
				eventually(t, patience, "by "+link, func() error {
					return c.hosts[0].Do(func() error {
						routes, err := netlink.RouteGet(b.addr.AsSlice())
						if err != nil {
							return err
						}
						if got := linkName(routes[0].LinkIndex); got != link {
							return fmt.Errorf("by %s", got)
						}
						return nil
					})
				})
				if err := sendTCP(a.NS, b.NS, b.addr, 10<<20); err != nil {
					t.Error(err)
				}
			}
			await("eth0")
			c.put("/coreos.com/network/config", testNetwork)
			await("flannel.1")
			c.put("/coreos.com/network/config", direct)
			await("eth0")
		})
	}
}

// rules are the traffic rules of the host, as nft lists them without what they have counted.
func (h *host) rules() string { return withoutHops(h.Run("nft", "--stateless", "list", "ruleset")) }

func hasBlackhole(p netip.Prefix) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Type: unix.RTN_BLACKHOLE, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TYPE|netlink.RT_FILTER_TABLE)
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() == p.String() {
			return nil
		}
	}
	return fmt.Errorf("no blackhole for %s in %v (%v)", p, routes, err)
}

func hasOverlayAddr(a netip.Addr) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, have := range addrs {
			if strings.HasPrefix(l.Attrs().Name, "flannel") && have.IP.Equal(net.IP(a.AsSlice())) {
				return nil
			}
		}
	}
	return fmt.Errorf("no overlay device has %s", a)
}

// get returns status and body of a request that starts on the host.
func get(t *testing.T, h *host, addr, path string) string {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, _ string) (conn net.Conn, err error) {
		err = h.Do(func() error { conn, err = net.Dial(network, addr); return err })
		return conn, err
	}}}
	r, err := client.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return fmt.Sprint(r.StatusCode, " ", string(b))
}

// TestHealth: alive and not ready while there is no network config; a port that is taken is a clear error.
func TestHealth(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	h := c.hosts[0]
	p := h.start("--dataplane", modeUserspace, "--healthz-port", "8081")
	p.waitLog("no network config", patience)
	if got := get(t, h, "127.0.0.1:8081", "/healthz"); !strings.HasPrefix(got, "200") {
		t.Errorf("healthz: %s", got)
	}
	if got := get(t, h, "127.0.0.1:8081", "/readyz"); !strings.HasPrefix(got, "503") {
		t.Errorf("readyz: %s", got)
	}
	second := *h
	second.subnetFile = filepath.Join(t.TempDir(), "second.env")
	if code := second.start("--healthz-port", "8081").wait(patience); code != exitFailure || !strings.Contains(second.daemon.text(), "--healthz-port 8081") {
		t.Errorf("second daemon on the port: exit code %d:\n%s", code, second.daemon.text())
	}
}

// TestPasswordIsNotShown: neither the log nor, from a file, the command line has it.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("hush-hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, testNetwork)
	for _, args := range [][]string{
		{"--etcd-password-file", file}, {"--etcd-password", "hush-hush"},
	} {
		h := c.hosts[0]
		p := h.start(append(args, "--etcd-username", "u", "-v", "1")...)
		p.waitLog("msg=ready", patience) // etcd has no users, and asks for none
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(cmdline), "hush-hush") {
			t.Errorf("%q: the command line is %q", args, cmdline)
		}
		if warned := strings.Contains(p.text(), "the etcd password is given on the command line"); warned != (args[0] == "--etcd-password") {
			t.Errorf("%q: warned: %v", args, warned)
		}
		if strings.Contains(p.text(), "hush-hush") {
			t.Errorf("the log shows the password:\n%s", p.text())
		}
		p.stop(unix.SIGTERM)
	}
}

// TestRouterAdvertisements: a host that takes its routes from router advertisements does so
// still when overlayd has turned forwarding on.
func TestRouterAdvertisements(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, []string{under4, under6}, 1, dualNetwork)
	h := c.hosts[0]
	h.Must(func() error {
		for _, s := range []string{"all/forwarding=0", "eth0/accept_ra=1"} {
			name, value, _ := strings.Cut(s, "=")
			if err := rtnl.SetSysctl(ip6Conf+"/"+name, value); err != nil {
				return err
			}
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		_, dst, _ := net.ParseCIDR("2001:db8:aaaa::/48")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Protocol: unix.RTPROT_RA, Gw: net.ParseIP("2001:db8::1")})
	})
	h.up("--dataplane", modeUserspace)
	h.Must(func() error {
		for name, want := range map[string]string{"all/forwarding": "1", "eth0/forwarding": "1", "eth0/accept_ra": "2", "default/accept_ra": "1"} {
			b, err := os.ReadFile("/proc/sys/" + ip6Conf + "/" + name)
			if err != nil || strings.TrimSpace(string(b)) != want {
				return fmt.Errorf("%s is %q (%v), want %s", name, b, err, want)
			}
		}
		return nil
	})
}

// TestWithoutIptables: a host without the iptables binary joins, with one warning, unless it is told
// to masquerade: then it says what is missing and goes on trying.
func TestWithoutIptables(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	c.path = t.TempDir()
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace, "--iptables-resync", "1")
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		if n := linesWith(h.daemon.text(), "iptables"); n != 1 {
			t.Fatalf("%d lines of iptables:\n%s", n, h.daemon.text())
		}
	}
	h.daemon.stop(unix.SIGTERM)
	h.start("--dataplane", modeUserspace, "--ip-masq").waitLog("find iptables", patience)
	if strings.Contains(h.daemon.text(), "msg=ready") {
		t.Errorf("ready without rules:\n%s", h.daemon.text())
	}
	c.put("/coreos.com/network/config", strings.Replace(testNetwork, "{", `{"EnableNFTables":true,`, 1))
	h.daemon.waitLog("msg=ready", patience)
}

// TestRulesGo: traffic rules outlive the daemon, unless it is told to take them along or drains; cleanup
// of the rules only leaves device and subnet file.
func TestRulesGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, filterNFT.in(testNetwork))
	h := c.hosts[0]
	names := h.on(t.TempDir(), "blue")
	c.put("/coreos.com/network/blue/config", `{"Network":"10.6.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan","VNI":2}}`)
	check := func(what string, rules, device bool) {
		t.Helper()
		if got := strings.Contains(h.ruleset(), "overlayd masq"); got != rules {
			t.Errorf("%s: rules are left: %v, want %v", what, got, rules)
		}
		if got := strings.Contains(h.Run("ip", "-br", "link"), "flannel."); got != device {
			t.Errorf("%s: a device is left: %v, want %v", what, got, device)
		}
	}
	several := func(more ...string) {
		h.daemon = h.overlayd(append([]string{"--etcd-endpoints", c.url, "--networks=blue", "--subnet-dir", filepath.Dir(names.subnetFile), "--ip-masq"}, more...)...)
		h.daemon.waitLog("msg=ready network=blue", patience)
	}
	clean := func(args ...string) {
		if p := h.overlayd(append([]string{"cleanup"}, args...)...); p.wait(patience) != 0 {
			t.Errorf("cleanup %q: %s", args, p.text())
		}
	}
	up := func(more ...string) { h.up(append([]string{"--ip-masq"}, more...)...) }
	stop := func() {
		if code := h.daemon.stop(unix.SIGTERM); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	up("--remove-rules-on-exit")
	check("while the daemon runs", true, true)
	stop()
	check("with --remove-rules-on-exit", false, true)
	up()
	stop()
	check("without", true, true)
	clean("--rules", "--subnet-file", h.subnetFile)
	check("after cleanup --rules", false, true)
	if !isFile(h.subnetFile) {
		t.Error("cleanup --rules removed the subnet file")
	}
	up()
	if p := h.overlayd("drain", "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile); p.wait(patience) != 0 {
		t.Errorf("drain: %s", p.text())
	}
	h.daemon.wait(patience)
	check("after drain", false, true)
	clean("--subnet-file", h.subnetFile)
	check("after cleanup", false, false)
	several("--remove-rules-on-exit")
	stop()
	check("several networks with --remove-rules-on-exit", false, true)
	several()
	stop()
	check("several networks without", true, true)
}
