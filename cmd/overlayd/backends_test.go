package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hostGWDual    = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"host-gw"}}`
	hostGWNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"host-gw"}}`
	allocNetwork  = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"alloc"}}`
)

// TestHostGW: with the backend host-gw pods reach each other by plain routes, with the underlay's MTU and
// without any device, whichever dataplane is asked for; a peer on no link is reported and costs nothing else.
// With another backend in the config the routes go.
func TestHostGW(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, hostGWNetwork)
	// Not on the link of the hosts.
	c.put(subnets+"10.5.70.0-24", `{"PublicIP":"198.51.100.9","PublicIPv6":null,"BackendType":"host-gw"}`)
	a, b := c.upPair([2]string{modeKernel, modeUserspace}, "--ip-masq")
	h := c.hosts[0]
	if want := fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null,"BackendType":"host-gw"}`, h.addr); c.get(h.key()) != want {
		t.Errorf("lease %s, want %s", c.get(h.key()), want)
	}
	if got := h.env("FLANNEL_MTU"); got != "1500" {
		t.Errorf("FLANNEL_MTU=%s", got)
	}
	if want := fmt.Sprintf("%s via %s dev eth0", c.hosts[1].gateway().Masked(), c.hosts[1].addr); !strings.Contains(h.Run("ip", "route"), want) {
		t.Errorf("no route %s:\n%s", want, h.Run("ip", "route"))
	}
	if links := h.Run("ip", "-o", "link"); strings.Contains(links, "flannel") {
		t.Errorf("there is a device:\n%s", links)
	}
	checkPair(t, h, a, c.hosts[1], b, 10<<20)
	h.daemon.waitLog("peer 198.51.100.9", patience)
	if n := linesWith(h.daemon.text(), "peer 198.51.100.9"); n != 1 || !strings.Contains(h.daemon.text(), "backend host-gw") {
		t.Errorf("the peer off the link is named %d times:\n%s", n, h.daemon.text())
	}

	c.put("/coreos.com/network/config", allocNetwork)
	for _, h := range c.hosts {
		eventually(t, patience, "the routes are gone", func() error {
			if got := h.Run("ip", "route", "show", "proto", "211"); got != "" {
				return fmt.Errorf("routes: %s", got)
			}
			return nil
		})
	}
}

// TestHostGWDualStack: the routes to IPv4 subnets have IPv4 gateways, and those to IPv6 subnets IPv6 ones.
func TestHostGWDualStack(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, []string{under4, under6}, 2, hostGWDual)
	a, b := c.upPair([2]string{modeAuto, modeAuto})
	if want := fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":"%s","BackendType":"host-gw"}`, c.hosts[0].addrs[0], c.hosts[0].addrs[1]); c.get(c.hosts[0].key()) != want {
		t.Errorf("lease %s, want %s", c.get(c.hosts[0].key()), want)
	}
	for _, to := range b.addrs {
		eventually(t, patience, fmt.Sprint(to, " answers"), func() error { return echoWithin(a.NS, to, 1400, 100*time.Millisecond) })
	}
}

// TestAlloc: with the backend alloc a host has a subnet, which survives a restart, and nothing leads to those of others.
func TestAlloc(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, allocNetwork)
	for _, h := range c.hosts {
		h.up()
	}
	h := c.hosts[0]
	subnet := h.gateway()
	if want := fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null}`, h.addr); c.get(h.key()) != want {
		t.Errorf("lease %s, want %s", c.get(h.key()), want)
	}
	if got := h.env("FLANNEL_MTU"); got != "1500" {
		t.Errorf("FLANNEL_MTU=%s", got)
	}
	if got := h.Run("ip", "route"); strings.Contains(got, "10.5.") || strings.Contains(h.Run("ip", "-o", "link"), "flannel") {
		t.Errorf("something leads to the overlay:\n%s", got)
	}
	h.daemon.stop(unix.SIGTERM)
	h.up()
	if got := h.gateway(); got != subnet {
		t.Errorf("subnet %s after a restart, it was %s", got, subnet)
	}
	if text := h.daemon.text(); !strings.Contains(text, "backend alloc") || strings.Contains(text, "level=WARN msg=\"lease not used") {
		t.Errorf("log:\n%s", text)
	}
}

// TestNoBackendIsWarnedOf: without a Backend flanneld takes udp, so that one line says what overlayd takes.
func TestNoBackendIsWarnedOf(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, `{"Network":"10.5.0.0/16"}`)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace)
	if n := strings.Count(h.daemon.text(), "flanneld would run udp"); n != 1 {
		t.Errorf("warned %d times:\n%s", n, h.daemon.text())
	}
}

// TestHostGWNetworks: one daemon serves several networks with the backend host-gw; the routes of one that goes leave
// those of the other alone.
func TestHostGWNetworks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "")
	for network, prefix := range map[string]string{"red": "10.5.0.0/16", "blue": "10.6.0.0/16"} {
		c.put("/coreos.com/network/"+network+"/config", `{"Network":"`+prefix+`","Backend":{"Type":"host-gw"}}`)
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, h := range c.hosts {
		h.daemon = h.overlayd("--etcd-endpoints", c.url, "--watch-networks", "--subnet-dir", dirs[i], "--healthz-port", "8081")
	}
	for i, network := range []string{"red", "blue"} {
		var pods [2]*pod
		for j, h := range c.hosts {
			n := h.on(dirs[j], network)
			n.daemon.waitLog("msg=ready network="+network, patience)
			pods[j] = n.pod(i, 0)
		}
		warmUp(t, pods[0], pods[1])
		warmUp(t, pods[1], pods[0])
	}
	h := c.hosts[0]
	before := h.Run("ip", "route", "show", "root", "10.5.0.0/16", "proto", "211")
	c.delete("/coreos.com/network/blue/config")
	eventually(t, patience, "the routes of blue are gone", func() error {
		if left := h.Run("ip", "route", "show", "root", "10.6.0.0/16", "proto", "211"); left != "" {
			return fmt.Errorf("routes: %s", left)
		}
		return nil
	})
	if after := h.Run("ip", "route", "show", "root", "10.5.0.0/16", "proto", "211"); after != before || before == "" {
		t.Errorf("routes of red:\n%s\nbefore:\n%s", after, before)
	}
}

// TestBackendsWithOneFamily: in a dual-stack network a host with one family of underlay has subnets of both with the backend alloc.
// With host-gw it has none, as with flannel, and says which family is missing; the others do not notice.
func TestBackendsWithOneFamily(t *testing.T) {
	t.Parallel()
	for _, config := range []string{strings.Replace(hostGWDual, "host-gw", "alloc", 1), hostGWDual} {
		c := newClusterOn(t, []string{under4, under6}, 2, config)
		whole, half := c.hosts[0], c.hosts[1]
		half.Run("ip", "-6", "addr", "flush", "dev", "eth0", "scope", "global")
		up := c.hosts
		if config == hostGWDual {
			up = c.hosts[:1]
		}
		for _, h := range up {
			h.up()
			if h.env("FLANNEL_SUBNET") == "" || h.env("FLANNEL_IPV6_SUBNET") == "" {
				t.Errorf("%s: %s has no subnet of one family", config, h.name)
			}
		}
		if config != hostGWDual {
			continue
		}
		half.start()
		half.daemon.waitLog("network fd10:5::/48: this node has no address of the network's family to publish: backend host-gw needs one of each family", patience)
		if _, err := os.Stat(half.subnetFile); err == nil || c.get(whole.key()) == "" {
			t.Errorf("a subnet file is there, or the lease of the other host is not: %v", err)
		}
	}
}
