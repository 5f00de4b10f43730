package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// liar is an old node that shall cost a younger one its packets: it has no host, only an entry in the store that is older
// than those of all others.
type liar struct{ key, value string }

func newLiar(c *cluster) liar {
	l := liar{subnets + "10.5.240.0-24", vxlanValue("192.0.2.240", "0e:00:00:00:02:40")}
	c.put(l.key, l.value)
	return l
}

// vxlanValue is the value of a lease.
func vxlanValue(ip, mac string) string {
	return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, ip, mac)
}

// lieTime is how long a lie stands in the store while traffic is watched: longer than any delay with which a node reacts.
const lieTime = 2500 * time.Millisecond

// bothWays are the dataplanes of the hosts that are lied to: a lie about a node is judged by itself and by its peer.
func bothWays(t *testing.T, run func(t *testing.T, modes [2]string)) {
	t.Helper()
	t.Parallel()
	for _, modes := range [][2]string{{modeKernel, modeUserspace}, {modeUserspace, modeKernel}} {
		t.Run(strings.Join(modes[:], " to "), func(t *testing.T) {
			t.Parallel()
			run(t, modes)
		})
	}
}

// TestOlderNodeTakesMAC: an older node that publishes the MAC of a younger one, each time that this has another, or its address, or one of
// its subnet, costs it no packet and not its MAC.
func TestOlderNodeTakesMAC(t *testing.T) {
	bothWays(t, func(t *testing.T, modes [2]string) {
		c := newCluster(t, 2, testNetwork)
		l := newLiar(c)
		a, b := c.upPair(modes)
		victim := c.hosts[1]
		before := c.get(victim.key())
		there, back := startMeters(t, a, b)
		for range 3 {
			c.put(l.key, vxlanValue("192.0.2.240", vtepMAC(c.get(victim.key()))))
			time.Sleep(lieTime / 2) // the time that the lie stands
		}
		for _, ip := range []netip.Addr{victim.addr, b.addr} {
			c.put(l.key, vxlanValue(ip.String(), "0e:00:00:00:02:41"))
			time.Sleep(lieTime / 5) // likewise
		}
		for range 100 { // to and fro
			c.put(l.key, l.value)
			c.put(l.key, vxlanValue("192.0.2.240", vtepMAC(before)))
		}
		if lost := there.finish() + back.finish(); lost > 0 {
			t.Errorf("%d datagrams lost", lost)
		}
		if after := c.get(victim.key()); after != before {
			t.Errorf("its lease is %s, was %s", after, before)
		}
		for _, h := range c.hosts {
			text := h.daemon.text()
			if n := linesWith(text, "lease not used") + linesWith(text, "another host publishes"); n > 10 {
				t.Errorf("%s logs %d lines about the lies:\n%s", h.name, n, text)
			}
		}
		if modes[0] == modeKernel {
			c.hosts[0].daemon.waitLog("belongs to lease "+victim.gateway().Masked().String(), patience)
		}
		victim.daemon.waitLog("this node keeps it", patience)
		for i, h := range c.hosts {
			h.daemon.stop(unix.SIGKILL)
			h.up("--dataplane", modes[i])
		}
		warmUp(t, a, b)
	})
}

// farStore is the address of an etcd that the hosts reach by their default gateway.
const farStore = "10.98.0.1"

// newFarCluster is newCluster with etcd at farStore.
func newFarCluster(t *testing.T, n int, config string) *cluster {
	t.Helper()
	c := newHosts(t, []string{under4}, n)
	c.under.Addr("lo", farStore+"/32")
	for _, h := range c.hosts {
		h.DefaultRoute("192.0.2.1")
	}
	c.url = "http://" + farStore + ":2379"
	c.startEtcd()
	c.put("/coreos.com/network/config", config)
	return c
}

// TestLeasesThatLie: in a network that holds the store, leases which would take the store, a link of the host or half of the network
// away, or send VXLAN where no peer is, are refused by name and cost nobody a packet; the next good lease works at once.
func TestLeasesThatLie(t *testing.T) {
	bothWays(t, func(t *testing.T, modes [2]string) {
		c := newFarCluster(t, 3, `{"Network":"10.98.0.0/16","SubnetMin":"10.98.32.0","SubnetMax":"10.98.63.0","Backend":{"Type":"vxlan"}}`)
		h := c.hosts[0]
		h.Must(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}) })
		h.Run("ip", "link", "set", "br0", "up")
		h.Addr("br0", "10.98.70.1/24")
		lies := []struct{ key, public, says string }{
			{"10.98.0.0-17", "192.0.2.200", "is not of length 24"},
			{"10.98.128.0-17", "192.0.2.201", "is not of length 24"},
			{"10.98.0.0-24", "192.0.2.202", "holds 10.98.0.1, an address of the store"},
			{"10.98.70.0-24", "192.0.2.203", "covers 10.98.70.0/24, a local link of br0"},
			{"10.98.71.0-24", "192.0.2.255", "is the first or last address of 192.0.2.0/24"},
			{"10.98.72.0-24", "10.98.70.1", "is an address of this host"},
			{"10.98.73.0-24", "8.8.8.8", "PublicIP 8.8.8.8 is outside of what peers may have here"},
			{"10.98.74.0-24", "240.0.0.7", "PublicIP 240.0.0.7 is reserved"},
		}
		put := func(i int) {
			c.put(subnets+lies[i].key, vxlanValue(lies[i].public, fmt.Sprintf("0e:00:00:00:03:%02x", i)))
		}
		put(0)
		put(1) // before there is any other lease
		a, b := c.upPair(modes, "--peer-cidr", under4)
		there, back := startMeters(t, a, b)
		for i := range lies {
			put(i)
		}
		peer := makePeer(t, c.hosts[2], h, "10.98.250.0", true)
		began := now(t)
		c.put(peer.key, peer.value)
		eventually(t, patience, "the next good lease works", func() error { return echoWithin(a.NS, peer.addr, 56, 20*time.Millisecond) })
		if took := began.passed(t); took > promised(200*time.Millisecond) {
			t.Errorf("the next good lease worked after %s", took)
		}
		for _, lie := range lies {
			h.daemon.waitLog(lie.says, patience)
		}
		if lost := there.finish() + back.finish(); lost > 0 {
			t.Errorf("%d datagrams lost", lost)
		}
		for i, h := range c.hosts[:2] {
			h.daemon.stop(unix.SIGKILL)
			h.up("--dataplane", modes[i], "--peer-cidr", under4)
		}
		warmUp(t, a, b)
	})
}

// overlayConfig is a network config with that network.
func overlayConfig(network string) string {
	return `{"Network":"` + network + `","Backend":{"Type":"vxlan"}}`
}

// TestConfigExcursion: a network config that covers the store, or under which the subnets do not fit, stands for 6 s, and costs no lease,
// no packet and no host its store; one that this host cannot carry costs nothing for as long as it stands. Log and status say so.
func TestConfigExcursion(t *testing.T) {
	bothWays(t, func(t *testing.T, modes [2]string) {
		const key, network = "/coreos.com/network/config", "10.42.0.0/16"
		c := newFarCluster(t, 2, overlayConfig(network))
		a, b := c.upPair(modes)
		h := c.hosts[0]
		lease := c.get(h.key())
		there, back := startMeters(t, a, b)
		c.put(key, overlayConfig("10.98.0.0/16"))
		h.daemon.waitLog("network config is not applied yet", patience)
		p := h.overlayd("status", "--subnet-file", h.subnetFile)
		if p.wait(patience); !strings.Contains(p.text(), "does not fit this node's subnets") {
			t.Errorf("status does not say that the config is held:\n%s", p.text())
		}
		time.Sleep(6 * time.Second) // the excursion itself
		c.put(key, `{"Network":"10.42.0.0/16","SubnetMin":"10.42.0.0","SubnetMax":"10.42.0.0","Backend":{"Type":"vxlan"}}`)
		c.put(key, `{"Network":"192.0.2.0/24","Backend":{"Type":"vxlan","VNI":10000000}}`)
		h.daemon.waitLog("this host cannot carry it", patience)
		for _, text := range []string{`{`, `{"Network":"10.42.0.0/16","Backend":{"Type":"udp"}}`} {
			c.put(key, text)
			eventually(t, patience, "the status warns of the config", func() error {
				p := h.overlayd("status", "--subnet-file", h.subnetFile)
				if code := p.wait(patience); code == 0 || !strings.Contains(p.text(), "no usable network config in the store") {
					return fmt.Errorf("exit code %d:\n%s", code, p.text())
				}
				return nil
			})
			if p := h.overlayd("doctor", "--subnet-file", h.subnetFile); p.wait(patience) == 0 || !strings.Contains(p.text(), "overlayd check config") {
				t.Errorf("doctor finds nothing:\n%s", p.text())
			}
		}
		c.put(key, overlayConfig(network))
		h.daemon.waitLog("is again the one that is applied", patience)
		c.put(key, strings.Replace(overlayConfig(network), `"vxlan"`, `"vxlan","MTU":1400`, 1)) // what concerns no lease is applied at once
		h.daemon.waitLog("msg=MTU overlay=1350", patience)
		for i := range 40 { // to and fro
			c.put(key, overlayConfig([]string{network, "10.98.0.0/16", "10.99.0.0/16"}[i%3]))
		}
		c.put(key, overlayConfig(network))
		h.daemon.waitLog("msg=MTU overlay=1450", patience)
		if n := linesWith(h.daemon.text(), "network config is"); n > 10 {
			t.Errorf("%d lines about configs", n)
		}
		if lost := there.finish() + back.finish(); lost > 0 {
			t.Errorf("%d datagrams lost", lost)
		}
		// A daemon that starts during an excursion waits for its end, too.
		h.daemon.stop(unix.SIGTERM)
		c.put(key, overlayConfig("10.98.0.0/16"))
		h.start("--dataplane", modes[0]).waitLog("does not fit this node's subnets", patience)
		if p := h.overlayd("--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--replace"); p.wait(patience) == 0 || !strings.Contains(p.text(), "does not fit") {
			t.Errorf("a daemon takes the place of one that holds a config:\n%s", p.text())
		}
		c.put(key, overlayConfig(network))
		h.daemon.waitLog("msg=ready", patience)
		warmUp(t, a, b)
		if got := c.get(h.key()); got != lease {
			t.Errorf("the lease is %q, was %q", got, lease)
		}
	})
}

// TestConfigStands: a config under which the subnets do not fit is applied once it has stood for long enough: by a daemon that runs, and by one
// that starts with the subnet file of its last run.
func TestConfigStands(t *testing.T) {
	t.Parallel()
	const key, hold = "/coreos.com/network/config", 2 * time.Second
	c := newCluster(t, 1, overlayConfig("10.42.0.0/16"))
	h := c.hosts[0]
	args := []string{"--dataplane", modeUserspace, "--config-hold", hold.String()}
	h.up(args...)
	for i, network := range []string{"10.43.0.0/16", "10.44.0.0/16"} {
		running := i == 0
		if !running {
			h.daemon.stop(unix.SIGTERM)
		}
		began := now(t)
		c.put(key, overlayConfig(network))
		if !running {
			h.start(args...)
		}
		h.daemon.waitLog("msg=\"lease acquired\" subnet="+strings.TrimSuffix(network, "0.0/16"), patience)
		if took := began.passed(t); time.Since(began.time) < hold || took > promised(hold+3*time.Second) {
			t.Errorf("applied after %s, want %s", took, hold)
		}
	}
}

// TestRouteHidesStore: a daemon that starts beside a route of an earlier one which hides the store withdraws it, and says so; the
// routes are back with the config.
func TestRouteHidesStore(t *testing.T) {
	t.Parallel()
	c := newFarCluster(t, 2, overlayConfig("10.42.0.0/16"))
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	h := c.hosts[0]
	h.daemon.stop(unix.SIGKILL)
	h.Run("ip", "route", "add", "10.98.0.0/16", "dev", "flannel.1", "proto", "211") // as of a config that covers the store
	h.up("--dataplane", modeUserspace, "--metrics-port=9799")
	if n := linesWith(h.daemon.text(), "route withdrawn: it hid the store"); n != 1 {
		t.Errorf("that is logged %d times:\n%s", n, h.daemon.text())
	}
	if n := series(t, scrape(t, h), `overlayd_withdrawn_routes_total{network=""}`); n != 1 {
		t.Errorf("%v withdrawn routes are counted, want 1", n)
	}
	warmUp(t, a, b)
	if out := h.Run("ip", "route", "show", "10.42.0.0/16"); !strings.Contains(out, "flannel.1") {
		t.Errorf("the route to the network is %q", out)
	}
}
