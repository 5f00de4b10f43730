package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// injectFaults makes the underlay's ports bad ones, each for what comes in by it.
// One packet in a hundred is lost, one comes twice and one comes late, by a detour
// of 20 Mbit/s. A superpacket fares as the one packet that it still is.
func (c *cluster) injectFaults(damage bool) {
	c.t.Helper()
	c.detour()
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

// detour makes a slow way through the underlay: what is forwarded to slow0 comes
// into the bridge by slow1, some milliseconds late.
func (c *cluster) detour() {
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
}

// damagedByte is what a damaged payload has at one place.
const damagedByte = 0x5a

// damage overwrites one byte, at an offset from the outer UDP header.
type damage struct {
	at    int
	value byte
}

func damages() []damage {
	return []damage{
		{125, damagedByte},  // payload: the outer checksum tells
		{8, 0x00},           // VXLAN flags
		{14, 0x5a},          // VNI
		{17, 0x5a},          // inner destination MAC
		{28, 0x86},          // EtherType
		{30, 0x46},          // IP version and header length
		{32, 0x3f},          // total length
		{36, 0x66},          // fragment offset
		{39, 0x11},          // protocol
		{43, 0x5a},          // source
		{47, 0x5a},          // destination
		{51, 0x5a},          // transport header: ports, sequence number, flags
		{55, 0x5a},          //
		{62, 0xff},          //
		{63, 0x5a},          //
		{70, damagedByte},   // payload, of short packets too
		{125, damagedByte},  //
		{1400, damagedByte}, //
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
	nft(c.t, c.under, rules)
}

// nft loads rules into a namespace.
func nft(t *testing.T, ns *netnstest.NS, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var out []byte
	err := ns.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, out, rules)
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

// freeze lets no packet through any more.
func (c *cluster) freeze() {
	c.t.Helper()
	var s strings.Builder
	for i := range c.hosts {
		fmt.Fprintf(&s, "flush chain netdev chaos port%d; add rule netdev chaos port%[1]d udp dport 8472 drop\n", i)
	}
	c.nft(s.String())
	c.under.Run("tc", "qdisc", "del", "dev", "slow0", "root")
	c.quiet()
}

// quiet waits until the packets that are on their way have arrived.
func (c *cluster) quiet() {
	c.t.Helper()
	last, since := uint64(0), time.Now()
	eventually(c.t, patience, "the daemons have read all", func() error {
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
