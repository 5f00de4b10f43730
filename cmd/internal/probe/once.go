package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// The errors of Once.
var (
	ErrSilent  = errors.New("no answer")
	ErrNoHost  = errors.New("a host on the way, or this one, finds no such host")
	ErrPathMTU = errors.New("too large for the path")
)

// Once sends one echo request of so many bytes (0: a small one) with Don't Fragment, and returns the round trip. It waits
// for the answer until ctx ends. from is an address of this host; not valid: the kernel chooses.
func Once(ctx context.Context, from, to netip.Addr, size int) (rtt time.Duration, err error) {
	s, err := openSocket(to.Is6())
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, s.close)
	defer func() {
		if stop() {
			s.close()
		}
	}()
	r := request{from: from, to: to, seq: 1, size: max(size, smallSize(to))}
	_, _ = rand.Read(r.cookie[:]) // it never fails
	begin := time.Now()
	sum, err := s.send(&r)
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", to, err)
	}
	for {
		a, err := s.receive()
		if err != nil {
			return 0, ErrSilent
		}
		quoted := a.to == to && a.sum == sum
		switch {
		case a.outcome == reply && a.from == to && a.seq == r.seq && string(a.data) == string(r.cookie[:]):
			return time.Since(begin), nil
		case a.outcome == tooBig && quoted:
			return 0, fmt.Errorf("%w: a router says that it takes %d bytes", ErrPathMTU, a.mtu)
		case a.outcome == unreachable && quoted:
			return 0, ErrNoHost
		}
	}
}
