package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestSoak carries mixed traffic between hosts of every kind while the underlay
// between them loses, doubles and reorders packets, and in the second run damages
// them at every header too. Nothing wrong may reach an application, the daemons'
// books must close, and their memory must not grow.
//
// Each run lasts ten seconds, or what OVERLAYD_SOAK says:
//
//	OVERLAYD_SOAK=10m go test -run TestSoak -timeout 30m -v ./cmd/overlayd
func TestSoak(t *testing.T) {
	for _, tool := range []string{"nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test needs %s: apt-get install nftables iproute2 (make test does)", tool)
		}
	}
	length := 10 * time.Second
	if v := os.Getenv("OVERLAYD_SOAK"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatalf("OVERLAYD_SOAK: %v", err)
		}
	}
	t.Run("default offloads", func(t *testing.T) { soak(t, length, false) })
	t.Run("damage", func(t *testing.T) { soak(t, length, true) })
}

// soakHosts are the kinds of hosts, and soakPairs those that talk to each other.
func soakHosts() [][]string {
	return [][]string{
		{"--dataplane", modeUserspace},
		{"--dataplane", modeUserspace},
		{"--dataplane", modeKernel},
		{"--dataplane", modeUserspace, "--debug-offloads", "none"},
	}
}

func soakPairs() [][2]int { return [][2]int{{0, 1}, {0, 2}, {1, 3}, {3, 2}} }

func soak(t *testing.T, length time.Duration, damage bool) {
	c := newCluster(t, len(soakHosts()), testNetwork)
	var pods []*pod
	for i, args := range soakHosts() {
		h := c.hosts[i]
		h.Run("nft", "add table inet books; add counter inet books arrived; "+
			"add chain inet books input { type filter hook input priority 0; }; "+
			"add rule inet books input udp dport 8472 counter name arrived")
		if damage { // with offloads nobody computes the checksums that tell
			h.Must(func() error { return txChecksums("eth0", false) })
		}
		h.up(args...)
		p := h.pod(0, 0)
		if damage {
			p.Must(func() error { return txChecksums("eth0", false) })
		}
		pods = append(pods, p)
	}
	for _, p := range soakPairs() {
		warmUp(t, pods[p[0]], pods[p[1]])
	}
	c.injectFaults(damage)

	traffic := newSoakTraffic()
	for _, p := range soakPairs() {
		traffic.start(pods[p[0]], pods[p[1]])
	}
	// The buffers are in memory once they were used; a third of the time does that.
	time.Sleep(length / 3)
	warm := c.residentMemory()
	time.Sleep(length - length/3)
	end := c.residentMemory()
	traffic.finish(t)
	t.Logf("faults: %s", strings.Join(c.faults(), ", "))
	c.freeze()
	for i, h := range c.hosts {
		if h.daemon.stop(unix.SIGTERM) != 0 {
			t.Errorf("%s: exit code %d", h.name, h.daemon.cmd.ProcessState.ExitCode())
		}
		t.Logf("%s: resident memory %d kB, then %d kB", h.name, warm[i], end[i])
		if grown := end[i] - warm[i]; grown > 5<<10 && !raceEnabled {
			t.Errorf("%s: resident memory grew by %d kB", h.name, grown)
		}
		if soakHosts()[i][1] == modeUserspace {
			h.checkBooks(damage)
		}
	}
}

// injectFaults makes the underlay's ports bad ones, each for what comes in by it.
// One packet in a hundred is lost, one comes twice and one comes late, by a detour
// of 20 Mbit/s. A superpacket fares as the one packet that it still is.
func (c *cluster) injectFaults(damage bool) {
	c.t.Helper()
	netnstest.Link(c.under, "slow0", c.under, "slow1")
	c.under.Must(func() error {
		l, err := netlink.LinkByName("slow1")
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return err
		}
		if err := netlink.LinkSetLearning(l, false); err != nil {
			return err
		}
		return netlink.LinkSetFlood(l, false)
	})
	c.under.Run("tc", "qdisc", "add", "dev", "slow0", "root", "tbf", "rate", "20mbit", "burst", "1600", "limit", "200000")
	var s strings.Builder
	s.WriteString("table netdev chaos {\n")
	for _, fault := range []string{"lost", "damaged", "doubled", "late"} {
		fmt.Fprintf(&s, "counter %s { }\n", fault)
	}
	choice := ""
	if damage {
		s.WriteString(damageChains())
		choice = damageChoice()
	}
	for i := range c.hosts {
		fmt.Fprintf(&s, "chain faults%d {\nnumgen random mod 1000 < 10 counter name lost drop\n", i)
		s.WriteString(choice)
		for j, h := range c.hosts {
			if j != i {
				fmt.Fprintf(&s, "ip daddr %s numgen random mod 1000 < 10 counter name doubled dup to port%d\n", h.addr, j)
			}
		}
		s.WriteString("numgen random mod 1000 < 10 counter name late fwd to slow0\n}\n")
		fmt.Fprintf(&s, "chain port%d { type filter hook ingress device port%[1]d priority 0; udp dport 8472 jump faults%[1]d; }\n", i)
	}
	s.WriteString("}\n")
	c.nft(s.String())
}

// damage overwrites one byte, at an offset from the outer UDP header.
type damage struct {
	at    int
	value byte
}

func damages() []damage {
	return []damage{
		{125, 0x5a},  // payload: the outer checksum tells
		{8, 0x00},    // VXLAN flags
		{14, 0x5a},   // VNI
		{17, 0x5a},   // inner destination MAC
		{28, 0x86},   // EtherType
		{30, 0x46},   // IP version and header length
		{32, 0x3f},   // total length
		{36, 0x66},   // fragment offset
		{39, 0x11},   // protocol
		{43, 0x5a},   // source
		{47, 0x5a},   // destination
		{51, 0x5a},   // transport header: ports, sequence number, flags
		{55, 0x5a},   //
		{62, 0xff},   //
		{63, 0x5a},   //
		{70, 0x5a},   // payload, of short packets too
		{125, 0x5a},  //
		{1400, 0x5a}, //
	}
}

// damageChains returns a chain for each damage. All but the first also say that
// there is no outer checksum, or the kernel would see what the daemon is to see.
func damageChains() string {
	var s strings.Builder
	for i, d := range damages() {
		noChecksum := "@th,48,16 set 0"
		if i == 0 {
			noChecksum = ""
		}
		fmt.Fprintf(&s, "chain damage%d { @th,%d,8 set %#x %s counter name damaged; }\n", i, 8*d.at, d.value, noChecksum)
	}
	return s.String()
}

// damageChoice returns the rule that damages packets, each at one place at most and
// no later fragments: of two damages to one datagram the second may well undo what
// the first did to the checksum.
func damageChoice() string {
	var s strings.Builder
	s.WriteString("@th,288,16 & 0x1fff == 0 numgen random mod 1000 vmap {")
	for i := range damages() {
		fmt.Fprintf(&s, " %d : jump damage%[1]d,", i)
	}
	return s.String() + " }\n"
}

// nft loads rules in the under namespace.
func (c *cluster) nft(rules string) {
	c.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var out []byte
	err := c.under.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		c.t.Fatalf("nft: %v\n%s\n%s", err, out, rules)
	}
}

// faults returns how many packets met with each fault.
func (c *cluster) faults() (all []string) {
	for _, fault := range []string{"lost", "damaged", "doubled", "late"} {
		packets, _ := counter(c.under, "netdev", "chaos", fault)
		all = append(all, fmt.Sprintf("%d %s", packets, fault))
	}
	return all
}

// freeze lets no packet through any more, and waits until those on their way have arrived.
func (c *cluster) freeze() {
	c.t.Helper()
	var s strings.Builder
	for i := range c.hosts {
		fmt.Fprintf(&s, "flush chain netdev chaos port%d; add rule netdev chaos port%[1]d udp dport 8472 drop\n", i)
	}
	c.nft(s.String())
	c.under.Run("tc", "qdisc", "del", "dev", "slow0", "root")
	last, since := uint64(0), time.Now()
	eventually(c.t, 10*time.Second, "the daemons have read all", func() error {
		sum := uint64(0)
		for _, h := range c.hosts {
			sum += h.udp("InDatagrams") + h.udp("InErrors")
		}
		if sum != last {
			last, since = sum, time.Now()
		}
		if time.Since(since) < 300*time.Millisecond {
			return fmt.Errorf("%d datagrams so far", sum)
		}
		return nil
	})
}

// counter reads a named nft counter.
func counter(ns *netnstest.NS, family, table, name string) (packets, bytes uint64) {
	out, _ := ns.Output("nft", "list", "counter", family, table, name)
	_, numbers, _ := strings.Cut(out, "packets")
	fmt.Sscanf(numbers, "%d bytes %d", &packets, &bytes)
	return packets, bytes
}

// udp reads a counter of the host's kernel.
func (h *host) udp(name string) (value uint64) {
	h.c.t.Helper()
	h.Must(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var keys []string
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if fields[0] != "Udp:" {
				continue
			}
			for i := range keys {
				if keys[i] == name {
					value, err = strconv.ParseUint(fields[i], 10, 64)
				}
			}
			keys = fields
		}
		return err
	})
	return value
}

// residentMemory returns VmRSS of each daemon in kB.
func (c *cluster) residentMemory() (kb []int) {
	c.t.Helper()
	for _, h := range c.hosts {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.daemon.cmd.Process.Pid))
		if err != nil {
			c.t.Fatal(err)
		}
		n := 0
		_, rest, _ := strings.Cut(string(b), "VmRSS:")
		fmt.Sscan(rest, &n)
		kb = append(kb, n)
	}
	return kb
}

// checkBooks compares what the stopped daemon says that it did with what the
// kernel says that it gave it. single says that each receive brought one datagram.
// Where offloads are on it may bring many, which the kernel does not count: there
// the bytes must agree, which leaves no datagram out either.
func (h *host) checkBooks(single bool) {
	t := h.c.t
	t.Helper()
	_, line, ok := strings.Cut(h.daemon.text(), "msg=stats ")
	if !ok {
		t.Errorf("%s: no stats in the log", h.name)
		return
	}
	line, _, _ = strings.Cut(line, "\n")
	t.Logf("%s: %s", h.name, line)
	stats := map[string]uint64{}
	for field := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(field, "=")
		stats[key], _ = strconv.ParseUint(value, 10, 64)
	}
	sum := func(reasons ...string) (n uint64) {
		for _, reason := range reasons {
			n += stats["drops_"+reason]
		}
		return n
	}
	equal := func(what string, a, b uint64) {
		t.Helper()
		if a != b {
			t.Errorf("%s: %s: %d against %d, %d apart", h.name, what, a, b, int64(a-b))
		}
	}
	var device uint64
	h.Must(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err == nil {
			device = l.Attrs().Statistics.TxPackets
		}
		return err
	})
	equal("packets from the device = sent + dropped", device, stats["tx_packets"]+sum("no_route", "too_big", "send"))

	// A socket without UDP_GRO gets the datagrams of a superpacket one by one.
	plain := strings.Contains(h.daemon.text(), "udp_gro=false")
	received, refused := h.udp("InDatagrams"), h.udp("InErrors")
	arrived, bytes := counter(h.NS, "inet", "books", "arrived")
	if single || !plain {
		equal("packets arrived = received + refused by the socket", arrived, received+refused)
	}
	if overrun := sum("overrun"); overrun > refused || overrun < refused-h.udp("InCsumErrors") {
		t.Errorf("%s: %d dropped as overrun, and the socket refused %d", h.name, overrun, refused)
	}
	dropped := sum("malformed", "bad_vni", "bad_mac", "unknown_vtep", "bad_source", "deliver", "congestion")
	if single || plain {
		equal("datagrams received = delivered + dropped", received, stats["rx_packets"]+dropped)
	}
	if single {
		return
	}
	if dropped > 0 {
		t.Errorf("%s: %d datagrams dropped though nothing was damaged", h.name, dropped)
	}
	// IPv4 and UDP header of each packet; VXLAN and Ethernet header of each datagram.
	missing := int64(bytes - 28*arrived - stats["rx_bytes"] - 22*stats["rx_packets"])
	if missing < 0 || missing > int64(refused)<<16 {
		t.Errorf("%s: %d more bytes arrived than were delivered, and the socket refused %d packets", h.name, missing, refused)
	}
}

// txChecksums switches whether a link leaves checksums to its peer, as ethtool -K
// link tx does.
func txChecksums(link string, on bool) error {
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:], link)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("set tx checksums of %s: %w", link, errno)
	}
	return nil
}
