package underlay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// settle is how long to wait after a notification: an address is replaced by deleting
	// the old one first.
	settle = 250 * time.Millisecond
	// between is the least time between two selections: the links of many networks come one after the other, and each network selects.
	between = time.Second
	// recheck is the time between two selections that no notification asks for.
	recheck = time.Minute
	// patience is how long another interface or address has to be asked for while those in use still work: a DHCP
	// client or a reload of the network takes a default route away for a moment.
	patience = 5 * time.Second
)

// Watch calls changed with the result of Select for o whenever that differs from now, and
// from the last result, until ctx ends; it then returns nil. An address in use
// stays as long as it can be used and the options do not ask for another one for five seconds. While nothing can be selected (a cable is pulled, an address is about
// to be replaced) changed is not called. Watch uses the network namespace of the calling
// thread and works in the calling goroutine. It returns an error if the kernel's
// notifications can no longer be read.
func Watch(ctx context.Context, o Options, now Interface, changed func(Interface)) error {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}})
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	defer s.Close()
	return follow(ctx, s, o, now, changed)
}

func follow(ctx context.Context, s *watch.Subscription, o Options, now Interface, changed func(Interface)) error {
	var asked time.Time // since when another place is asked for; zero: it is not
	look := func(ctx context.Context) error {
		got, err := SelectKeeping(ctx, o, now)
		if err != nil || !got.moves(now) || !now.works() {
			asked = time.Time{}
		} else if asked.IsZero() {
			asked = time.Now()
		}
		if err != nil || got == now || !asked.IsZero() && time.Since(asked) < patience {
			return nil
		}
		now, asked = got, time.Time{}
		changed(got)
		return nil
	}
	s.Wake() // something may have changed before there was a subscription
	err := s.Run(ctx, watch.Loop{Concerns: concerns, Look: look, Spread: pace.Spread{Gather: settle, Between: between}, Resync: recheck,
		Pending: func() bool { return !asked.IsZero() }})
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	return nil
}

// moves reports whether i is in another place than last: its packets have another source.
func (i Interface) moves(last Interface) bool {
	other := func(now, last End) bool { return last.Local.IsValid() && now.Local != last.Local }
	return i.Index != last.Index || other(i.IPv4, last.IPv4) || other(i.IPv6, last.IPv6)
}

// works reports whether i is up, and has its carrier and its addresses.
func (i Interface) works() bool {
	links, err := readLinks()
	at := slices.IndexFunc(links, func(l link) bool { return l.index == i.Index })
	if err != nil || at < 0 || !links[at].up || !links[at].carrier {
		return false
	}
	for _, e := range []End{i.IPv4, i.IPv6} {
		if _, err := byAddr(links, e.Local); e.Local.IsValid() && err != nil {
			return false
		}
	}
	return true
}

// concerns ignores routes that have a destination: an overlay of 10 000 peers has as many,
// and they do not choose the underlay. (A route to Options.CanReach may be one of them. It
// is taken into account at the next other change, or within a minute.)
func concerns(h unix.NlMsghdr, body []byte) bool {
	const dstLen = 1 // offset of rtmsg.rtm_dst_len
	isRoute := h.Type == unix.RTM_NEWROUTE || h.Type == unix.RTM_DELROUTE
	return !isRoute || len(body) <= dstLen || body[dstLen] == 0
}
