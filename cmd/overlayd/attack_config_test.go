package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// config is a network config that cannot be applied, or changes nothing for the leases.
func (f *fuzzer) config() string {
	net := pick(f, "0.0.0.0/0", "::/0", "127.0.0.0/8", "224.0.0.0/4", "192.0.2.0/24", "192.0.2.2/32", "10.5.0.0/33", "10.5.0.0", "", "10.5.0.0/16 ", "10.5.0.1/16", "10.0.0.0/7", "255.255.255.255/32", "10.5.0.0/16", "10.5.0.0/-1", "010.5.0.0/16", strings.Repeat("1", 9000))
	v := fmt.Sprintf(`{"Network":%q,"SubnetLen":%s,"SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`, net, f.number())
	switch f.IntN(8) {
	case 0:
		v = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","SubnetMin":%q,"Backend":{"Type":"vxlan"}}`, f.ip())
	case 1:
		v = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan","MTU":%s}}`, pick(f, "-1", "67", "117", "65536", "1e9", `"x"`, "1400", "1500", "9000", "65535", strings.Repeat("9", 400)))
	case 2:
		v = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":%q}}`, pick(f, "udp", "host-gw ", "wireguard", "ipip", "\x00", strings.Repeat("x", 5000)))
	case 3:
		v = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan","VNI":%s}}`, pick(f, "-1", "16777216", "1e9", `"1"`, "null", "10000000"))
	case 4:
		v = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan","Port":%s}}`, pick(f, "-1", "65536", "70000", "1e9", `"1"`, "null"))
	case 5:
		v = fmt.Sprintf(`{"EnableIPv6":true,"IPv6Network":%q,"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`, pick(f, "::/0", "fe80::/10", "ff00::/8", "::1/128", "fd00::/129", "fd00::", "::ffff:10.5.0.0/112", "x"))
	case 6:
		v = f.mutate(testNetwork)
		if strings.Contains(v, "Backend") && strings.Contains(v, "Network") {
			v = strings.Repeat("{", 1000)
		}
	}
	return v
}

// TestAttackConfig: network configs that cannot be applied, at speed, cost no datagram, also a daemon that starts meanwhile is there when the good one is back.
func TestAttackConfig(t *testing.T) {
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	modes := [2]string{modeKernel, modeUserspace}
	a, b := c.upPair(modes)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 1))}
	there, back := startMeters(t, a, b)
	said := [2]int{len(c.hosts[0].daemon.text()), len(c.hosts[1].daemon.text())}
	cpu := c.hosts[0].daemon.cpu()
	began := time.Now()
	n := 0
	for ; time.Since(began) < durationFrom(t, "ATTACK_TIME", 25*time.Second); n++ {
		c.put(storePrefix+"config", f.config())
		if n%3 == 0 {
			time.Sleep(time.Duration(f.IntN(20)) * time.Millisecond)
		}
		if n%100 == 0 {
			if took := c.hosts[0].learns(100); took > 200*time.Millisecond {
				t.Logf("a lease was used after %s", took)
			}
		}
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	for i, h := range c.hosts {
		t.Logf("%d configs, %d lines, %d sessions, %d kB, %s of cpu", n, strings.Count(h.daemon.text()[said[i]:], "\n"), linesWith(h.daemon.text(), "msg=ready"), h.daemon.peak(), c.hosts[0].daemon.cpu()-cpu)
		if lines := strings.Count(h.daemon.text()[said[i]:], "\n"); lines > 100 {
			t.Errorf("%d lines:\n%s", lines, h.daemon.text()[said[i]:])
		}
	}
	h := c.hosts[0]
	h.daemon.stop(unix.SIGTERM)
	c.put(storePrefix+"config", "{")
	h.start("--dataplane", modes[0])
	for range 100 {
		c.put(storePrefix+"config", f.config())
		time.Sleep(10 * time.Millisecond)
	}
	c.put(storePrefix+"config", testNetwork)
	h.daemon.waitLog("msg=ready", patience)
	warmUp(t, a, b)
}
