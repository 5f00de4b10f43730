package underlay

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// settle is how long to wait after a notification: an address is replaced by deleting
	// the old one first.
	settle = 250 * time.Millisecond
	// recheck is the time between two selections that no notification asks for.
	recheck = time.Minute
)

// Watch calls changed with the result of Select for o whenever that differs from now, and
// from the last result, until ctx ends; it then returns nil. An address in use
// stays as long as it can be used. While nothing can be selected (a cable is pulled, an address is about
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
	look := func(ctx context.Context) error {
		got, err := SelectKeeping(ctx, o, now)
		if err != nil || got == now {
			return nil
		}
		now = got
		changed(got)
		return nil
	}
	s.Wake() // something may have changed before there was a subscription
	err := s.Run(ctx, watch.Loop{Concerns: concerns, Look: look, Spread: pace.Spread{Gather: settle}, Resync: recheck})
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	return nil
}

// concerns ignores routes that have a destination: an overlay of 10 000 peers has as many,
// and they do not choose the underlay. (A route to Options.CanReach may be one of them. It
// is taken into account at the next other change, or within a minute.)
func concerns(h unix.NlMsghdr, body []byte) bool {
	const dstLen = 1 // offset of rtmsg.rtm_dst_len
	isRoute := h.Type == unix.RTM_NEWROUTE || h.Type == unix.RTM_DELROUTE
	return !isRoute || len(body) <= dstLen || body[dstLen] == 0
}
