package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// TestOlderNodeTakesMAC: an older node that publishes the MAC of a younger one, each time that this has another, costs it no
// packet and not its MAC.
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
		if lost := there.finish() + back.finish(); lost > 0 {
			t.Errorf("%d datagrams lost", lost)
		}
		if after := c.get(victim.key()); after != before {
			t.Errorf("its lease is %s, was %s", after, before)
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
