//go:build tools

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/encap"
)

// sendUDP sends datagrams from an address of the host to the VXLAN port of another host, with an outer TOS.
func (h *host) sendUDP(from, to netip.Addr, tos int, datagrams ...[]byte) {
	h.c.t.Helper()
	var conn *net.UDPConn
	if err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
		return err
	}); err != nil {
		h.c.t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		h.c.t.Fatal(err)
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, guard.DefaultMark)) // past the guard of its own host
	}); err != nil || serr != nil {
		h.c.t.Fatal(err, serr)
	}
	for _, d := range datagrams {
		if _, err := conn.WriteToUDPAddrPort(d, netip.AddrPortFrom(to, 8472)); err != nil {
			h.c.t.Fatal(err)
		}
	}
}

// sendWrong has each host of the underlay do what it should not, to the daemon of h, and returns how many packets of each
// verdict that makes.
func sendWrong(t *testing.T, h, peer *host, a, b *pod) map[string]int {
	t.Helper()
	stranger := netip.MustParseAddr("192.0.2.99")
	peer.Run("ip", "addr", "add", stranger.String()+"/24", "dev", "eth0")
	from, to := b.addr, netip.AddrPortFrom(a.addr, 9)
	frame := func(vni uint32, mac encap.MAC, from netip.Addr, to netip.AddrPort) []byte {
		return append(vxlanFrame(dataplane.MAC(peer.addr, 1), mac, vni), markedPacket(7, from, to)...)
	}
	own := dataplane.MAC(h.addr, 1)
	good := frame(1, own, from, to)
	peer.sendUDP(peer.addr, h.addr, 0, []byte{8, 0, 0}, good[:40], // bad_header twice
		frame(77, own, from, to), frame(1, encap.MAC{2, 9}, from, to), // bad_vni, bad_mac
		frame(1, own, netip.MustParseAddr("10.5.200.9"), to), frame(1, own, from, netip.MustParseAddrPort("10.5.200.9:9"))) // bad_source, bad_destination
	peer.sendUDP(stranger, h.addr, 0, good)
	peer.sendUDP(peer.addr, h.addr, 3, good) // congestion, and the inner packet cannot say so
	_ = echoWithin(a.NS, netip.MustParseAddr("10.5.201.1"), 56, 10*time.Millisecond)
	return map[string]int{"drop:bad_header": 2, "drop:bad_vni": 1, "drop:bad_mac": 1, "drop:bad_source": 1, "drop:bad_destination": 1,
		"drop:unknown_vtep": 1, "drop:congestion": 1, "drop:no_route": 1}
}

// packetsOf returns how many packets a daemon has carried or dropped.
func packetsOf(t *testing.T, h *host) (n uint64) {
	t.Helper()
	d, err := admin.NewClient(admin.Path(h.subnetFile)).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range d.Networks[0].Counters {
		if key == "tx_packets" || key == "rx_packets" || strings.HasPrefix(key, "drops_") {
			n += value
		}
	}
	return n
}

// tool runs a program of Debian, and returns the lines that it prints.
func tool(t *testing.T, name string, args ...string) []string {
	t.Helper()
	var notes strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &notes
	out, err := cmd.Output()
	if err != nil || strings.Contains(notes.String(), "cut short") || strings.Contains(notes.String(), "truncated") {
		t.Fatalf("%s %q: %v\n%s", name, args, err, notes.String())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// TestToolsReadCaptures: two captures of one flood, of more packets a second than a person can want, are read whole by tshark
// and tcpdump. Each drop is on the interface of its reason, and what the file lacks is what the capture says it has lost.
func TestToolsReadCaptures(t *testing.T) {
	const flooded = 100_000
	cl := newCluster(t, 2, testNetwork)
	a, b := cl.upPair([2]string{modeUserspace, modeUserspace}, "--probe-interval=0")
	c, peer := newCapturer(t, cl.hosts[0]), cl.hosts[1]
	dir := t.TempDir()
	before := packetsOf(t, c.host)
	files := map[string]*process{}
	for name, args := range map[string][]string{"all": nil, "short": {"-s", "60"}, "drops": {"--drops"}} {
		files[name] = c.begin(append([]string{"capture", "-w", filepath.Join(dir, name)}, args...)...)
	}
	f, err := newFlood(a.NS, b.NS, b.addr, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	begin := time.Now()
	go f.send() // ends with receive
	want := sendWrong(t, c.host, peer, a, b)
	f.receive(flooded)
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Logf("%.0f packets a second", float64(f.received)/time.Since(begin).Seconds())
	var carried uint64
	eventually(t, patience, "the workers are idle", func() error {
		was := carried
		if carried = packetsOf(t, c.host) - before; carried != was {
			return fmt.Errorf("%d packets", carried)
		}
		return nil
	})
	for name, p := range files {
		if code := p.stop(unix.SIGINT); code != 0 {
			t.Fatalf("%s: exit code %d", name, code)
		}
		var captured, lost uint64
		if _, err := fmt.Sscanf(p.text(), "%d packets captured, %d lost", &captured, &lost); err != nil {
			t.Fatalf("%s: %v: %s", name, err, p.text())
		}
		t.Logf("%s: %d captured, %d lost, %d carried or dropped", name, captured, lost, carried)
		if all := captured + lost; name != "drops" && (all < carried || all > carried+20) { // the host says something itself
			t.Errorf("%s: %d captured and %d lost of %d", name, captured, lost, carried)
		}
		checkFile(t, filepath.Join(dir, name), captured, lost, want)
	}
}

// checkFile has tshark and tcpdump read a file.
func checkFile(t *testing.T, file string, captured, lost uint64, drops map[string]int) {
	t.Helper()
	got := map[string]int{}
	all := tool(t, "tshark", "-n", "-r", file, "-T", "fields", "-e", "frame.interface_name")
	for _, verdict := range all {
		got[verdict]++
	}
	if uint64(len(all)) != captured {
		t.Errorf("%s: tshark reads %d packets of %d: %v", file, len(all), captured, got)
	}
	for verdict, n := range drops {
		if lost == 0 && got[verdict] < n || got[verdict] > n+20 { // the host's own IPv6 has no route
			t.Errorf("%s: %d of %s, want %d: %v", file, got[verdict], verdict, n, got)
		}
	}
	if lines := tool(t, "tcpdump", "-Z", "root", "-tnr", file); uint64(len(lines)) < captured { // some packets take more than one
		t.Errorf("%s: tcpdump prints %d lines for %d packets", file, len(lines), captured)
	}
}
