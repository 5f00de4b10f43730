package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// countBoth counts the VXLAN datagrams that leave and arrive, independently of any daemon.
const countBoth = `table inet both {
	counter sent { }
	counter arrived { }
	chain out {
		type filter hook postrouting priority 300; policy accept;
		oifname "eth0" udp dport 8472 counter name sent
	}
	chain in {
		type filter hook input priority -400; policy accept;
		iifname "eth0" udp dport 8472 counter name arrived
	}
}`

// TestMetricsAddUp: under load, over an underlay of either family, what the metrics say was sent and received is what the kernel counts
// on the underlay, and with the drops what came; and no counter ever falls, whatever becomes of the session.
func TestMetricsAddUp(t *testing.T) {
	t.Parallel()
	for _, under := range []string{under4, under6} {
		for _, modes := range [][2]string{{modeUserspace, modeKernel}, {modeKernel, modeUserspace}} {
			t.Run(modes[0]+" over "+under, func(t *testing.T) {
				t.Parallel()
				c := newClusterOn(t, []string{under}, 2, testNetwork)
				for _, h := range c.hosts {
					nft(t, h.NS, countBoth)
				}
				// A superpacket, or what GRO made of many, is one for the kernel's counters.
				a, b := c.upPair(modes, "--probe-interval=0", "--metrics-port=9799", "--debug-offloads=none")
				watched := []*rising{{host: c.hosts[0]}, {host: c.hosts[1]}}
				check := func() {
					t.Helper()
					for _, w := range watched {
						w.look(t)
					}
				}
				check()
				nowhere := netip.MustParseAddr("10.5.200.9") // of no peer
				send(t, a, nowhere, 100)                     // first: a device's queue that is full takes nothing more
				send(t, a, b.addr, 2000)
				check()
				send(t, b, nowhere, 100)
				send(t, b, a.addr, 2000)
				for i, w := range watched {
					eventually(t, patience, "the books close", func() error { return w.addUp(t, modes[i]) })
				}
				c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","VNI":7`, 1))
				for _, h := range c.hosts {
					h.daemon.waitLog("vni=7", patience)
				}
				eventually(t, patience, "pods reach each other", func() error {
					check()
					return echo(a.NS, b.addr, 56)
				})
				check()
			})
		}
	}
}

// send sends datagrams of one size as fast as it can. What is lost was dropped, and counted by somebody.
func send(t *testing.T, from *pod, to netip.Addr, count int) {
	t.Helper()
	from.Must(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		for range count {
			_, _ = conn.Write(make([]byte, 1000)) // refused if nobody listens: that says that others arrived
		}
		return nil
	})
}

// rising is a host whose counters must not fall.
type rising struct {
	*host
	last map[string]float64
}

var total = regexp.MustCompile(`(?m)^(overlayd_\S+_total(?:\{.*\})?) (\S+)$`)

// look reads the metrics, and compares them with those of before.
func (r *rising) look(t *testing.T) (text string) {
	t.Helper()
	text = scrape(t, r.host)
	now := map[string]float64{}
	for _, m := range total.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		now[m[1]] = v
	}
	for name, v := range r.last {
		is, there := now[name]
		if !there && strings.HasPrefix(name, "overlayd_peer_") { // it is not a peer now
			now[name], is, there = v, v, true
		}
		if !there || is < v {
			t.Errorf("%s: %s was %v and is %v", r.name, name, v, is)
		}
	}
	r.last = now
	return text
}

// addUp compares the metrics with what the kernel has counted.
func (r *rising) addUp(t *testing.T, mode string) error {
	t.Helper()
	text := r.look(t)
	packets := func(direction string) uint64 {
		return uint64(series(t, text, `overlayd_dataplane_packets_total{direction="`+direction+`",network=""}`))
	}
	var peers [2]uint64 // what went to the peer, and came from it
	for name, v := range r.last {
		switch metric, _, _ := strings.Cut(name, "{"); metric {
		case "overlayd_peer_tx_bytes_total":
			peers[0] += uint64(v)
		case "overlayd_peer_rx_bytes_total":
			peers[1] += uint64(v)
		}
	}
	var dropped [2]uint64 // on the way out, and in
	for name, v := range r.last {
		if rest, is := strings.CutPrefix(name, `overlayd_dataplane_dropped_packets_total{network="",reason="`); is {
			way := 1
			if strings.HasPrefix(rest, "no_route") || strings.HasPrefix(rest, "too_big") || strings.HasPrefix(rest, "write_error") || mode == modeKernel {
				way = 0
			}
			dropped[way] += uint64(v)
		}
	}
	sent, _ := counter(r.NS, "inet", "both", "sent")
	arrived, _ := counter(r.NS, "inet", "both", "arrived")
	var err error
	if packets("tx") != sent {
		err = fmt.Errorf("%d packets sent, the kernel counts %d datagrams", packets("tx"), sent)
	}
	if packets("rx")+dropped[1] != arrived {
		err = errors.Join(err, fmt.Errorf("%d packets received and %d dropped, the kernel counts %d datagrams", packets("rx"), dropped[1], arrived))
	}
	if mode == modeUserspace {
		for i, direction := range []string{"tx", "rx"} {
			if all := uint64(series(t, text, `overlayd_dataplane_bytes_total{direction="`+direction+`",network=""}`)); peers[i] != all {
				err = errors.Join(err, fmt.Errorf("%s: %d bytes, and %d with all peers", direction, all, peers[i]))
			}
		}
		if given := r.given(); packets("tx")+dropped[0] != given || dropped[0] == 0 {
			err = errors.Join(err, fmt.Errorf("%d packets sent and %d dropped, the kernel gave %d to the device", packets("tx"), dropped[0], given))
		}
	}
	return err
}

// given is how many packets the kernel has given to the device.
func (r *rising) given() (n uint64) {
	r.Must(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err == nil {
			n = l.Attrs().Statistics.TxPackets
		}
		return err
	})
	return n
}
