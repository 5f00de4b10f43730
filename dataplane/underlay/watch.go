package underlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Watch calls changed with what Select returns for o whenever that is another value
// than now, and than the last time, until ctx ends; it then returns nil. Of equally
// good addresses the one in use stays. While nothing can be selected (a cable is pulled, an
// address is about to be replaced) nothing is called. It watches the network
// namespace of the calling thread and works in the calling goroutine.
func Watch(ctx context.Context, o Options, now Interface, changed func(Interface)) error {
	events, err := subscribe()
	if err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	var reader sync.WaitGroup
	woken := make(chan struct{}, 1)
	reader.Go(func() { readEvents(events, woken) })
	defer reader.Wait()
	defer events.Close()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		// At once, too: something may have changed before there was a subscription.
		if got, err := selectKeeping(ctx, o, now); err == nil && got != now {
			now = got
			changed(got)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-woken:
			if !pause(ctx, settle) { // an address is replaced by deleting the old one first
				return nil
			}
		}
	}
}

const (
	settle  = 250 * time.Millisecond
	recheck = time.Minute
)

// pause waits, and reports false where ctx ended it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// subscribe opens a socket that hears of links, addresses and routes. It is a file so
// that closing it ends a read.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "netlink")
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readEvents wakes for each notification until f is closed. What it says is not looked
// at, so one that was lost for want of memory is as good as any.
func readEvents(f *os.File, woken chan<- struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		if err == nil && !ofInterest(buf[:n]) {
			continue
		}
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// ofInterest passes over routes with a destination: an overlay of 10 k peers has as
// many, and none of them chooses the underlay. (The route of --iface-can-reach may be
// one: it is looked at with the next change, or within a minute.)
func ofInterest(b []byte) bool {
	const header, dstLen = unix.SizeofNlMsghdr, unix.SizeofNlMsghdr + 1 // rtmsg.rtm_dst_len
	for len(b) >= header+unix.SizeofRtMsg {
		size := int(binary.NativeEndian.Uint32(b))
		kind := binary.NativeEndian.Uint16(b[4:])
		if (kind != unix.RTM_NEWROUTE && kind != unix.RTM_DELROUTE) || b[dstLen] == 0 {
			return true
		}
		if size < header || size > len(b) {
			return true
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return false
}
