package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Each fault has a line at its beginning and one at its end, also if it is the same as one that is over; one that keeps
// coming and going has not, and no number of peers makes more lines.
func TestFaultsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var f Faults
		logger := slog.New(slog.NewTextHandler(&log, nil))
		var all []error
		for i := range 1000 {
			all = append(all, &PeerError{Peer: Peer{VTEP: VTEP{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}, Err: errors.New("taken")})
		}
		many, one := errors.Join(all...), all[0]
		for i, step := range []struct {
			wait time.Duration
			know bool
			err  error
			want string
		}{
			{0, false, nil, ""},
			{0, false, one, "cannot be repaired"}, {time.Second, false, one, ""}, {0, false, nil, "as it should be"},
			{time.Second, false, one, "cannot be repaired"}, {0, false, nil, "as it should be"},
			{time.Second, true, one, ""}, {0, false, one, ""}, {0, false, nil, "as it should be"},
			{2 * time.Minute, false, one, "cannot be repaired"}, {0, true, nil, ""}, {0, false, nil, ""},
			{2 * time.Minute, false, many, "faults=1000"}, {0, false, one, "as it should be"}, {0, false, nil, "as it should be"},
		} {
			time.Sleep(step.wait)
			log.Reset()
			if step.know {
				f.Know(step.err)
			} else {
				f.Tell(logger, step.err)
			}
			if got := log.String(); strings.Count(got, "\n") != min(1, len(step.want)) || !strings.Contains(got, step.want) {
				t.Errorf("step %d: want %q, got %s", i, step.want, got)
			}
		}
		log.Reset()
		for i := range 1000 {
			f.Tell(logger, fmt.Errorf("fault %d", i))
			f.Tell(logger, nil)
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n > 2*(5+2) {
			t.Errorf("%d lines of a fault that comes and goes", n)
		}
	})
}
