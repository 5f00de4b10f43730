package kernel

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// Cleanup removes everything of ours from the network namespace of the calling
// thread, whichever dataplane made it: devices, routes, and nexthop objects of our
// protocol. It returns what it removed, in words, and removes as much as possible even
// if it returns an error. A second call finds nothing. The devices of which spare returns true, by
// index, stay with all that is on them: see [Leave].
func Cleanup(spare func(index int) bool) (removed []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("clean up: %w", err)
	}
	defer rt.Close()
	removed, err = rt.Cleanup(spare)
	more, errNexthops := cleanNexthops(spare)
	if err = errors.Join(err, errNexthops); err != nil {
		err = fmt.Errorf("clean up: %w", explain(err, &Config{}))
	}
	return append(removed, more...), err
}

// cleanNexthops removes our nexthop objects on other devices. Those on our devices went with
// the device.
func cleanNexthops(spare func(index int) bool) (removed []string, err error) {
	c, err := rtmsg.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ids, err := rtnl.Retry(func() (ids []uint32, err error) {
		err = c.Dump(unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), nil, func(body []byte) {
			if n, ok := parseNexthop(body); ok && n.protocol == rtnl.RouteProtocol && !spare(n.link) {
				ids = append(ids, n.id)
			}
		})
		return ids, err
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a kernel before 5.3
	}
	if err != nil {
		return nil, fmt.Errorf("list nexthops: %w", err)
	}
	var errs []error
	encode := func(i int, b []byte) []byte { return delNexthopMessage(b, ids[i]) }
	err = c.Transact(context.Background(), len(ids), encode, func(i int, _ []byte, err error) {
		if err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("delete nexthop id %d: %w", ids[i], err))
			return
		}
		removed = append(removed, fmt.Sprintf("nexthop %d", ids[i]))
	})
	return removed, errors.Join(append(errs, err)...)
}
