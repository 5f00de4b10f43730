package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// trial is a fault of the endurance test.
type trial struct {
	at  func(m *member) bool           // whether it can be at a host; nil: at each
	do  func(e *endurance, m *member)  // returns when it is over
	may func(m *member) (costs uint64) // how many datagrams each flow of the host may lose; nil: none
}

// trials are all faults of the endurance test, by name. Those of a store do not concern the host that is drawn for them
// more than others.
func trials() map[string]trial {
	all := map[string]trial{}
	for _, some := range []map[string]trial{daemonTrials(), storeTrials(), hostTrials(), driftTrials()} {
		for name, t := range some {
			all[name] = t
		}
	}
	return all
}

// daemonTrials are what becomes of daemons.
func daemonTrials() map[string]trial {
	inKernel := func(m *member) bool { return m.mode == modeKernel }
	return map[string]trial{
		"killed": {
			at: func(m *member) bool { return m.plays != steady },
			do: func(_ *endurance, m *member) { m.end(unix.SIGKILL) },
			may: func(m *member) uint64 {
				switch {
				case m.mode == modeKernel:
					return 0
				case m.plays == watched:
					return 1 // that the daemon was about to send
				}
				return math.MaxUint64
			},
		},
		"restarted": {
			// In userspace mode nobody forwards meanwhile, unless a supervisor keeps the queues and sockets.
			at: func(m *member) bool { return m.plays == watched || m.plays != steady && m.mode == modeKernel },
			do: func(_ *endurance, m *member) { m.end(unix.SIGTERM) },
		},
		"killed while etcd hangs": {
			at: func(m *member) bool { return m.mode == modeKernel && (m.plays == restarted || m.plays == changing) },
			do: func(e *endurance, m *member) {
				e.etcd.cmd.Process.Signal(unix.SIGSTOP)
				m.daemon.stop(unix.SIGKILL)
				m.start(m.flags()...)
				time.Sleep(2 * time.Second)
				e.etcd.cmd.Process.Signal(unix.SIGCONT)
				m.daemon.waitLog("msg=ready", patience)
			},
		},
		"replaced": {
			at: func(m *member) bool { return m.plays == restarted || m.plays == changing },
			do: func(_ *endurance, m *member) { m.replace() },
		},
		"changed": {
			at:  func(m *member) bool { return m.plays == changing },
			do:  func(_ *endurance, m *member) { m.change() },
			may: func(*member) uint64 { return mayLose(modeKernel, modeUserspace) },
		},
		"started twice": {do: func(e *endurance, m *member) {
			p := m.overlayd(append(m.flags(), "--etcd-endpoints", m.c.url, "--subnet-file", m.subnetFile)...)
			if code := p.wait(patience); code != exitFailure {
				e.t.Errorf("%s: exit code %d of a second daemon", m.name, code)
			}
		}},
		"paused": {
			at: func(m *member) bool { return inKernel(m) && m.unit == nil },
			do: func(_ *endurance, m *member) {
				m.daemon.cmd.Process.Signal(unix.SIGSTOP)
				m.feed(churn(), "ip", "-batch", "-")
				time.Sleep(3 * time.Second)
				m.daemon.cmd.Process.Signal(unix.SIGCONT)
			},
		},
	}
}

// churn are commands of ip that make and remove many devices and routes.
func churn() string {
	var s strings.Builder
	for i := range 50 {
		fmt.Fprintf(&s, "link add other%d type bridge\nlink set other%[1]d up\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&s, "route add 198.18.%d.%d/32 dev other%d\n", i/250, i%250, i%50)
	}
	for i := range 50 {
		fmt.Fprintf(&s, "link del other%d\n", i)
	}
	return s.String()
}

// hostTrials are what else happens on a host.
func hostTrials() map[string]trial {
	return map[string]trial{
		"churn":                {do: func(_ *endurance, m *member) { m.feed(churn(), "ip", "-batch", "-") }},
		"full disk":            {do: func(e *endurance, m *member) { e.fillDisk(m) }},
		"forged datagrams":     {do: func(e *endurance, m *member) { e.forge(m) }},
		"a host comes, leaves": {do: func(e *endurance, m *member) { e.comeAndLeave(m) }},
		"health asked": {do: func(e *endurance, m *member) {
			for range 100 {
				get(e.t, m.host, "127.0.0.1:8081", "/healthz")
			}
		}},
		"another device does not forward": {do: func(_ *endurance, m *member) {
			m.Run("sh", "-c", "ip link add other type bridge; ip link set other up; sysctl -qw net.ipv4.conf.other.forwarding=0; sleep 1; ip link del other")
		}},
	}
}

// fillDisk removes the subnet file and leaves no room for another one for two seconds.
func (e *endurance) fillDisk(m *member) {
	dir := filepath.Dir(m.subnetFile)
	err := os.Remove(m.subnetFile)
	if err == nil {
		err = fill(dir, false)
	}
	if !errors.Is(err, unix.ENOSPC) {
		e.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := os.Remove(filepath.Join(dir, "full")); err != nil {
		e.t.Error(err)
	}
}

// forgedSize is how long the payload of each datagram is that a host may drop: VXLAN, Ethernet, IPv4 and UDP or ICMP headers, and
// what a test sends.
const (
	forgedSize  = 8 + 14 + 20 + 8 + sentByATest
	sentByATest = 64
)

// forge sends a host what no peer sends, from the address of one: packets of the host's own pod, packets of another network,
// and noise.
func (e *endurance) forge(m *member) {
	peer := e.otherThan(m)
	var conn net.PacketConn
	peer.Must(func() (err error) {
		conn, err = peer.pastGuard()
		return err
	})
	defer conn.Close()
	for i := range 150 {
		vni := uint32(1 + i%2)
		payload := append(vxlanFrame(dataplane.MAC(peer.addr, vni), dataplane.MAC(m.addr, vni), vni),
			markedPacket(vni, m.pod.addr, netip.AddrPortFrom(m.pod.addr, 9))...)
		if i%3 == 0 {
			payload = randomBytes(forgedSize)
		}
		if _, err := conn.WriteTo(payload, net.UDPAddrFromAddrPort(netip.AddrPortFrom(m.addr, 8472))); err != nil {
			e.t.Error(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// comeAndLeave has one more host join for a while.
func (e *endurance) comeAndLeave(m *member) {
	h := e.guest
	// A probe that comes before the lease is known is dropped, and is not of forgedSize.
	h.up("--dataplane", []string{modeKernel, modeUserspace}[e.rnd.IntN(2)], "--ip-masq", "--probe-interval=0")
	p := h.pod(0, 0)
	reach(e.t, p, m.pod.addr)
	reach(e.t, e.otherThan(m).pod, p.addr)
	e.left = append(e.left, dataplane.MAC(h.addr, 1).String(), h.addr.String())
	for _, gateway := range h.gateways() {
		e.left = append(e.left, gateway.Masked().Addr().String())
	}
	if drain := h.overlayd("drain", "--subnet-file", h.subnetFile); drain.wait(patience) != 0 {
		e.t.Errorf("drain: %s", drain.text())
	}
	h.daemon.wait(patience)
	h.Run("ip", "link", "del", "pod0")
	if clean := h.overlayd("cleanup", "--subnet-file", h.subnetFile); clean.wait(patience) != 0 {
		e.t.Errorf("cleanup: %s", clean.text())
	}
}

// driftTrials are those faults of the drift matrix that keep no packet from its way.
func driftTrials() map[string]trial {
	all := map[string]trial{}
	for name, f := range driftFaults(modeUserspace, filterNFT) {
		switch name {
		case "address added", "MTU changed", "alias changed", "subnet file gone", "subnet file torn", "subnet file other",
			"underlay MTU", "nft table gone", "one rule gone", "rule added":
			all[name] = shell(f.do)
		}
	}
	all["redirects on"] = shell("sysctl -qw net.ipv4.conf.flannel/1.accept_redirects=1")
	for name, f := range driftFaults(modeKernel, filterNFT) {
		switch name {
		case "FDB entry added", "learning on":
			t := shell(f.do)
			t.at = func(m *member) bool { return m.mode == modeKernel }
			all[name] = t
		}
	}
	return all
}

// shell is a trial that a command on a host is. FILE is the subnet file.
func shell(command string) trial {
	return trial{do: func(_ *endurance, m *member) { m.Run("sh", "-c", strings.ReplaceAll(command, "FILE", m.subnetFile)) }}
}
