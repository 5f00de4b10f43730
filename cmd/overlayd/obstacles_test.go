package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// unshared waits until the last command in the background has a network namespace of its own.
const unshared = `while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done; `

// obstacle is something that somebody else puts in the way of what overlayd keeps.
type obstacle struct {
	name   string
	do     string // see fault
	report string // is in a line about it
	undo   string
}

func obstacles(mode string) []obstacle {
	all := []obstacle{
		// Until it is there before the daemon has made its device again.
		{"another device", "until ip link del flannel.1 2>/dev/null; ip link add flannel.1 type bridge 2>/dev/null; do sleep 0.01; done",
			"has this name", "ip link del flannel.1"},
	}
	if mode == modeUserspace {
		return append(all,
			obstacle{"route to a peer", "ip route add SUBNET via 192.0.2.1 dev eth0", "SUBNET via 192.0.2.1 dev eth0", "ip route del SUBNET"},
			obstacle{"blackhole", "ip route add blackhole SUBNET", "blackhole SUBNET", "ip route del blackhole SUBNET"},
			obstacle{"IPv6 blackhole", "ip route add blackhole SUBNET6", "blackhole SUBNET6", "ip route del blackhole SUBNET6"},
			obstacle{"blackhole for a part", "ip route add blackhole BASE/25", "blackhole BASE/25", "ip route del blackhole BASE/25"})
	}
	return append(all,
		obstacle{"route to a peer", "ip route replace SUBNET via 192.0.2.1 dev eth0", "somebody else has a route to it", "ip route del SUBNET"},
		obstacle{"blackhole", "ip route replace blackhole SUBNET", "SUBNET: somebody else has a route to it", "ip route del blackhole SUBNET"},
		obstacle{"moved away", "unshare -n sleep 60 >/dev/null 2>&1 & echo $! > FILE.pid; " + unshared + "ip link set flannel.1 netns $!",
			"UDP port is in use", "nsenter -t $(cat FILE.pid) -n ip link del flannel.1; kill $(cat FILE.pid)"})
}

// TestObstacles: what somebody else stands in the way of is reported once, and back within two seconds after he has
// gone, with another line.
func TestObstacles(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := newDrift(t, mode, filterNFT)
			for i, o := range obstacles(mode) {
				said := d.words.Replace(o.report)
				before := linesWith(d.daemon.text(), said)
				d.sh(o.do)
				eventually(t, promised(3*time.Second), o.name+": a report", func() error {
					if linesWith(d.daemon.text(), said) == before {
						return fmt.Errorf("none with %q", said)
					}
					return nil
				})
				if i == 0 {
					time.Sleep(2 * time.Second) // it is tried in vain meanwhile
				}
				if n := linesWith(d.daemon.text(), said) - before; n > 2 {
					t.Errorf("%s: reported %d times", o.name, n)
				}
				lines := d.lines()
				d.sh(o.undo)
				d.fault(o.name, fault{do: "true", quiet: true}, 2*time.Second)
				eventually(t, promised(time.Second), o.name+": a line about the end", func() error {
					if d.lines() == lines {
						return fmt.Errorf("none")
					}
					return nil
				})
			}
			d.tell()
		})
	}
}

// TestFight: whoever keeps undoing a repair is named once, what he fights is back within a second after he has ended,
// and everything else is repaired as soon as without him.
func TestFight(t *testing.T) {
	t.Parallel()
	for mode, route := range map[string]string{modeKernel: "SUBNET", modeUserspace: "NET metric 1048576"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := newDrift(t, mode, filterIPT)
			fight := exec.Command("sh", "-c", d.words.Replace("for i in $(seq 60); do ip route del "+route+" 2>/dev/null; sleep 0.05; done"))
			d.Must(fight.Start)
			d.daemon.waitLog("keeps undoing", patience)
			if _, text := overlayd(t, "status", "--subnet-file", d.subnetFile); !strings.Contains(text, "degraded") || !strings.Contains(text, "somebody keeps undoing the repair of ") {
				t.Errorf("the status does not name the fight:\n%s", text)
			}
			for _, other := range []string{"ip link set flannel.1 mtu 1300", "iptables -F FORWARD", "sysctl -qw net.ipv4.ip_forward=0", "truncate -s 0 FILE"} {
				lines := d.lines()
				d.sh(other)
				eventually(t, promised(time.Second), other+" during the fight: a line", func() error {
					if d.lines() == lines {
						return fmt.Errorf("none")
					}
					return nil
				})
			}
			if err := fight.Wait(); err != nil {
				t.Error(err)
			}
			d.back("route deleted 20 times a second", time.Second)
			if n, m := linesWith(d.daemon.text(), "keeps undoing"), linesWith(d.daemon.text(), "repaired what"); n != 1 || m > 20 { // a few of each object, and again after a pause of a busy machine
				t.Errorf("%d lines of the fight, %d of repairs", n, m)
			}
			d.tell()
		})
	}
}
