package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// asIdle is how long TestCNI watches for processes that an idle daemon executes. The
// promise is that it executes nothing, also in 60s.
const asIdle = "OVERLAYD_TEST_IDLE"

// site is a host with two pods made by CNI plugins and a network of its own that is not the
// overlay's, whose one other host knows no way to pods.
type site struct {
	*host
	pods    [2]*pod
	outside *netnstest.NS
	inside  []netip.Addr // the host's addresses there
	beyond  []netip.Addr // the other's
}

func (h *host) site(i int) *site {
	s := &site{host: h, outside: netnstest.New(h.c.t)}
	netnstest.Link(h.NS, "wan0", s.outside, "eth0")
	for _, prefix := range []string{"198.51.%d.%d/24", "2001:db8:%d::%d/64"} {
		here, there := fmt.Sprintf(prefix, 100+i, 1), fmt.Sprintf(prefix, 100+i, 2)
		h.Addr("wan0", here)
		s.outside.Addr("eth0", there)
		s.inside = append(s.inside, netip.MustParsePrefix(here).Addr())
		s.beyond = append(s.beyond, netip.MustParsePrefix(there).Addr())
	}
	return s
}

// outsideOf returns the host's address outside and that of the other, in the family of a.
func (s *site) outsideOf(a netip.Addr) (inside, beyond netip.Addr) {
	i := 0
	if a.Is6() {
		i = 1
	}
	return s.inside[i], s.beyond[i]
}

// TestCNI: Debian's bridge and host-local plugins, with what flannel's plugin makes of the subnet
// file, give pods that reach each other under their own addresses and everything else under
// their host's, where FORWARD drops; what somebody deletes of the rules comes back, and
// nothing is executed meanwhile.
func TestCNI(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter packetFilter
		name   string
		config string
		under  []string
	}{
		{filterNFT, "dual", dualNetwork, []string{under4, under6}},
		{filterIPT, "dual", dualNetwork, []string{under4, under6}},
		{filterLegacy, "v4", testNetwork, []string{under4}},
	} {
		t.Run(string(c.filter)+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			cluster := newClusterOn(t, c.under, 2, c.filter.in(c.config))
			c.filter.use(cluster)
			var sites [2]*site
			for i, mode := range []string{modeKernel, modeUserspace} {
				h := cluster.hosts[i]
				sites[i] = h.site(i)
				for _, command := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
					h.Run(command, "-w", "-P", "FORWARD", "DROP")
				}
				h.up("--dataplane", mode, "--ip-masq", "--iptables-resync", "1")
				sites[i].pods = [2]*pod{h.cniPod(), h.cniPod()}
			}
			warmUp(t, sites[0].pods[0], sites[1].pods[0])
			checkSites(t, sites)
			for i, s := range sites {
				s.checkRepair(c.filter, i)
			}
			checkIdle(t, sites)
			checkSites(t, sites)
			for _, s := range sites {
				if _, err := s.cni("DEL", s.pods[0].NS); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// checkSites wants of every connection the right source, both ways.
func checkSites(t *testing.T, sites [2]*site) {
	t.Helper()
	for i, s := range sites {
		other := sites[1-i]
		for f, from := range s.pods[0].addrs {
			inside, beyond := s.outsideOf(from)
			for _, c := range []struct {
				what     string
				to       *netnstest.NS
				at, want netip.Addr
			}{
				{"a pod of the other host", other.pods[0].NS, other.pods[0].addrs[f], from},
				{"another pod of the host", s.pods[1].NS, s.pods[1].addrs[f], from},
				{"the network outside", s.outside, beyond, inside},
			} {
				if got, err := sourceSeen(s.pods[0].NS, c.to, c.at); err != nil || got != c.want {
					t.Errorf("pod of %s at %s, %s: the source is %s (%v), want %s", s.name, c.at, c.what, got, err, c.want)
				}
			}
			if err := sendTCP(s.pods[0].NS, other.pods[0].NS, other.pods[0].addrs[f], 10<<20); err != nil {
				t.Error(err)
			}
		}
	}
}

// sourceSeen connects and returns who the other end takes this one for.
func sourceSeen(from, to *netnstest.NS, at netip.Addr) (source netip.Addr, err error) {
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(at.String(), "0")); return err }); err != nil {
		return source, err
	}
	defer l.Close()
	var client net.Conn
	if err := from.Do(func() (err error) { client, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }); err != nil {
		return source, err
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		return source, err
	}
	defer conn.Close()
	return netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().Unmap(), nil
}

// checkRepair deletes rules in several ways and waits for them. Either host takes every other way.
func (s *site) checkRepair(filter packetFilter, host int) {
	t := s.c.t
	t.Helper()
	want, children := s.ruleset(), s.children()
	for i, command := range sabotage(filter, len(s.pods[0].addrs) > 1) {
		if i%2 != host {
			continue
		}
		s.Run("sh", "-c", command)
		began := time.Now()
		// If the kernel does not tell of it, 1s of this is --iptables-resync.
		eventually(t, promised(2*time.Second), s.name+": "+command, func() error {
			if got := s.ruleset(); got != want {
				return fmt.Errorf("the rules are\n%s\nwant\n%s", got, want)
			}
			return nil
		})
		t.Logf("%s: %s: restored in %s", s.name, command, time.Since(began).Round(time.Millisecond))
	}
	if filter != filterNFT && s.children() == children {
		t.Errorf("%s: processes are not seen", s.name)
	}
}

// sabotage is what is done to the rules, one after the other.
func sabotage(filter packetFilter, dual bool) []string {
	all := []string{"iptables -F FORWARD", "iptables -D FORWARD -m comment --comment 'overlayd forward' -j OVERLAYD-1-FWD", "iptables -F OVERLAYD-1-FWD"}
	if filter == filterNFT {
		all = append(all, "nft delete table ip overlayd-1", "nft flush table ip overlayd-1", "nft flush chain ip overlayd-1 postrouting")
	} else {
		all = append(all, "iptables -t nat -F", "iptables -t nat -D POSTROUTING -m comment --comment 'overlayd masq' -j OVERLAYD-1-POSTRTG", "iptables -t nat -D OVERLAYD-1-POSTRTG 3")
	}
	if dual {
		all = append(all, "ip6tables -F FORWARD", "ip6tables -F OVERLAYD-1-FWD")
	}
	return all
}

// checkIdle waits for the last repair to have been looked at again, and then for processes that an
// idle daemon executes.
func checkIdle(t *testing.T, sites [2]*site) {
	t.Helper()
	const look = 1500 * time.Millisecond // more than --iptables-resync
	children := func() [2]int { return [2]int{sites[0].children(), sites[1].children()} }
	busy, since := children(), time.Now()
	eventually(t, patience, "both are idle", func() error {
		if now := children(); now != busy {
			busy, since = now, time.Now()
		}
		if time.Since(since) < look {
			return fmt.Errorf("not for %s yet", look)
		}
		return nil
	})
	idle := durationFrom(t, asIdle, time.Second)
	time.Sleep(idle) // the idleness itself
	if children() != busy {
		t.Errorf("processes were executed in %s of idleness", idle)
	}
}

// children is a measure of the processes that the daemon has executed and waited for, whatever they
// were: their page faults (cminflt of proc(5)), of which each has some.
func (h *host) children() int {
	h.c.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.c.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	n, err := strconv.Atoi(strings.Fields(rest)[8])
	if err != nil {
		h.c.t.Fatal(err)
	}
	return n
}
