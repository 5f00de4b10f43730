package underlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Health warns of what keeps the interface that carries an overlay from carrying it, from when that begins until it is over.
// Select takes an interface that is down, and Watch waits for another one: neither says why no packet goes. The methods
// may be called from several goroutines, whose threads are in one network namespace.
type Health struct {
	report *dataplane.Reporter
	deaf   bool
	index  atomic.Int64 // of iface

	mu     sync.Mutex
	iface  Interface    // zero: nothing carries it yet
	locals []netip.Addr // of the host, from which it sends
}

// NewHealth returns the Health of an overlay whose interface is not known yet. deaf: without the kernel's notices, for tests.
func NewHealth(log *slog.Logger, deaf bool) *Health {
	return &Health{report: dataplane.NewReporter(log, "underlay"), deaf: deaf}
}

// Carries says which interface carries the overlay from now on, and which of its ends, and looks at it.
func (h *Health) Carries(i Interface, ends []dataplane.Underlay) {
	h.mu.Lock()
	h.iface, h.locals = i, nil
	for _, e := range ends {
		h.locals = append(h.locals, e.Local)
	}
	h.index.Store(int64(i.Index))
	h.mu.Unlock()
	h.Look()
}

// Warnings returns what is wrong now. It waits for nothing.
func (h *Health) Warnings() []dataplane.Warning { return h.report.Status().Warnings }

// lasts is how long after a notice it is looked: an address is replaced by deleting the old one first, and [Watch] then
// takes the new one.
const lasts = 600 * time.Millisecond

// Run looks whenever the kernel reports a change, until ctx ends. It returns an error if the kernel's notifications cannot be read.
func (h *Health) Run(ctx context.Context) error {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Deaf: h.deaf,
		Must: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}})
	if err != nil {
		return fmt.Errorf("watch the underlay interface: %w", err)
	}
	defer s.Close()
	s.Wake() // something may have changed before
	resync := recheck
	if h.deaf {
		resync = watch.DeafResync
	}
	return s.Run(ctx, watch.Loop{Concerns: h.concerns, Look: func(context.Context) error { h.Look(); return nil },
		Spread: pace.Spread{Gather: lasts, Rest: time.Second}, Resync: resync})
}

// concerns ignores the links of pods: of a link only the interface itself counts. Its address may be on another one.
func (h *Health) concerns(n unix.NlMsghdr, body []byte) bool {
	const index = 4 // offset of ifinfomsg.ifi_index
	isLink := n.Type == unix.RTM_NEWLINK || n.Type == unix.RTM_DELLINK
	return !isLink || len(body) < index+4 || int64(binary.NativeEndian.Uint32(body[index:])) == h.index.Load()
}

// Look publishes what is wrong now. What cannot be read stays as it was. Who does not Run looks by it.
func (h *Health) Look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.iface == (Interface{}) {
		return
	}
	if faults, err := Faults(h.iface, h.locals); err == nil {
		h.report.Warn(faults...)
	}
}

// Faults returns what keeps an interface from carrying packets from these addresses of the host: the first fault, and of
// addresses each. Without an Index its name counts.
func Faults(i Interface, locals []netip.Addr) ([]dataplane.Warning, error) {
	l, err := linkOf(i)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return fault("the underlay interface "+i.Name+" is gone: peers cannot be reached", "bring it back, or give the host another one: overlayd then goes on by itself"), nil
	case err != nil:
		return nil, fmt.Errorf("find link %s: %w", i.Name, err)
	case l.Attrs().Flags&net.FlagUp == 0:
		return fault("the underlay interface "+i.Name+" is down: peers cannot be reached", "ip link set "+i.Name+" up, and give it its routes again, such as the default route"), nil
	case l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0:
		return fault("the underlay interface "+i.Name+" has no carrier: peers cannot be reached",
			"look at its cable, and at what it leads to: the port of a switch, or the other end of a virtual link"), nil
	}
	if m := portOf(l); m != nil {
		a := m.Attrs()
		return fault(fmt.Sprintf("the underlay interface %s is a port of the %s %s, by which all comes that peers send", i.Name, m.Type(), a.Name),
			fmt.Sprintf("give its addresses and routes to %s, and restart overlayd with --iface %[1]s if it was started with --iface; or ip link set %s nomaster", a.Name, i.Name)), nil
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var lost []dataplane.Warning
	for _, local := range locals {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(local.AsSlice()) }) {
			lost = append(lost, fault(fmt.Sprintf("the underlay interface %s has lost its address %s: peers cannot be reached", i.Name, local),
				fmt.Sprintf("ip addr add %s/LENGTH dev %s, and its routes; or give it another address, which overlayd takes over", local, i.Name))...)
		}
	}
	return lost, nil
}

// portOf returns the bridge or bond of which a link is a port: it takes what arrives there. nil: there is none. A VRF takes nothing.
func portOf(l netlink.Link) netlink.Link {
	if l.Attrs().MasterIndex == 0 {
		return nil
	}
	master, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil || !slices.Contains([]string{"bridge", "bond", "team", "openvswitch"}, master.Type()) {
		return nil
	}
	return master
}

func linkOf(i Interface) (netlink.Link, error) {
	if i.Index != 0 {
		return netlink.LinkByIndex(i.Index)
	}
	return netlink.LinkByName(i.Name)
}

func fault(text, fix string) []dataplane.Warning {
	return []dataplane.Warning{{ID: dataplane.WarnUnderlay, Text: text, Fix: fix}}
}
