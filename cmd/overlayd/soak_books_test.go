package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// openBooks counts what arrives for the daemon, from now on.
func (h *host) openBooks() {
	h.c.t.Helper()
	h.Run("nft", "add table inet books; add counter inet books arrived; "+
		"add chain inet books input { type filter hook input priority 0; }; "+
		"add rule inet books input udp dport 8472 counter name arrived")
}

// checkBooks compares what the stopped daemon says that it did with what the
// kernel says that it gave it. single says that each receive brought one datagram.
// Where offloads are on it may bring many, which the kernel does not count: there
// the bytes must agree, which leaves no datagram out either. Then only forged datagrams
// of that many bytes may have been dropped; 0: none were sent.
func (h *host) checkBooks(single bool, forged uint64) {
	h.c.t.Helper()
	_, line, ok := strings.Cut(h.daemon.text(), "msg=stats ")
	if !ok {
		h.c.t.Errorf("%s: no stats in the log", h.name)
		return
	}
	line, _, _ = strings.Cut(line, "\n")
	h.c.t.Logf("%s: %s", h.name, line)
	b := books{host: h, stats: map[string]uint64{}}
	for field := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(field, "=")
		b.stats[key], _ = strconv.ParseUint(value, 10, 64)
	}
	b.checkSent()
	b.checkReceived(single, forged)
}

// books are what a daemon says that it did.
type books struct {
	*host
	stats map[string]uint64
}

func (b books) drops(reasons ...string) (n uint64) {
	for _, reason := range reasons {
		n += b.stats["drops_"+reason]
	}
	return n
}

func (b books) equal(what string, kernel, daemon uint64) {
	b.c.t.Helper()
	if kernel != daemon {
		b.c.t.Errorf("%s: %s: %d against %d, %d apart", b.name, what, kernel, daemon, int64(kernel-daemon))
	}
}

// checkSent is about what the device gave. A pod sends nothing with a bad header.
func (b books) checkSent() {
	b.c.t.Helper()
	b.Must(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err == nil {
			b.equal("packets from the device = sent + dropped", l.Attrs().Statistics.TxPackets,
				b.stats["tx_packets"]+b.drops("no_route", "too_big")+b.stats["tx_write_errors"])
		}
		return err
	})
}

// checkReceived is about what the underlay gave.
func (b books) checkReceived(single bool, forged uint64) {
	b.c.t.Helper()
	// A socket without UDP_GRO gets the datagrams of a superpacket one by one.
	plain := strings.Contains(b.daemon.text(), "udp_gro=false")
	received, refused := b.udp("InDatagrams"), b.udp("InErrors")
	arrived, bytes := counter(b.NS, "inet", "books", "arrived")
	if single || !plain {
		b.equal("packets arrived = received + refused by the socket", arrived, received+refused)
	}
	if overrun := b.drops("queue_full"); overrun > refused || overrun < refused-b.udp("InCsumErrors") {
		b.c.t.Errorf("%s: %d dropped as queue_full, and the socket refused %d", b.name, overrun, refused)
	}
	dropped := b.drops("bad_header", "bad_vni", "bad_mac", "unknown_vtep", "bad_source", "bad_destination", "bad_checksum", "write_error", "congestion") - b.stats["tx_write_errors"]
	if single || plain {
		b.equal("datagrams received = delivered + dropped", received, b.stats["rx_packets"]+dropped)
	}
	if single {
		return
	}
	if dropped > 0 && forged == 0 {
		b.c.t.Errorf("%s: %d datagrams dropped though nothing was damaged", b.name, dropped)
	}
	// IPv4 and UDP header of each packet; VXLAN and Ethernet header of each datagram.
	missing := int64(bytes - 28*arrived - b.stats["rx_bytes"] - 22*b.stats["rx_packets"] - forged*dropped)
	if missing < 0 || missing > int64(refused)<<16 {
		b.c.t.Errorf("%s: %d more bytes arrived than were delivered, and the socket refused %d packets", b.name, missing, refused)
	}
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

// counter reads a named nft counter.
func counter(ns *netnstest.NS, family, table, name string) (packets, bytes uint64) {
	out, _ := ns.Output("nft", "list", "counter", family, table, name)
	_, numbers, _ := strings.Cut(out, "packets")
	fmt.Sscanf(numbers, "%d bytes %d", &packets, &bytes)
	return packets, bytes
}
