package handover

import (
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// TestDropLater: what nobody takes is dropped, but queues and sockets not before all who could take them have had the time to.
func TestDropLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := Estate{Log: slog.New(slog.DiscardHandler)}
		has := func() (names []string) {
			synctest.Wait()
			for _, name := range []string{"endpoint", inherit.QueueName(1), "udp 192.0.2.1:8472"} {
				if e.Has(func(n string) bool { return n == name }) {
					names = append(names, name)
				}
			}
			return names
		}
		var ends []*os.File
		for _, name := range []string{"endpoint", inherit.QueueName(1), "udp 192.0.2.1:8472"} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			ends = append(ends, r)
			e.Add([]carrier.Export{{Name: name, File: w}})
		}
		var mayCome atomic.Bool
		mayCome.Store(true)
		defer e.DropLater(mayCome.Load)()
		for i, step := range []struct {
			after time.Duration
			may   bool // from then on
			want  []string
		}{
			{neededWithin - time.Second, true, []string{"endpoint", "tun flannel.1", "udp 192.0.2.1:8472"}},
			{2 * time.Second, true, []string{"tun flannel.1", "udp 192.0.2.1:8472"}},
			{time.Hour, false, []string{"tun flannel.1", "udp 192.0.2.1:8472"}},
			{neededWithin, false, []string{"tun flannel.1", "udp 192.0.2.1:8472"}},
			{neededWithin, false, nil},
		} {
			time.Sleep(step.after)
			if got := has(); !slices.Equal(got, step.want) {
				t.Errorf("step %d: %v, want %v", i, got, step.want)
			}
			mayCome.Store(step.may)
		}
		for i, r := range ends { // end of file: closed
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("file %d is still open: %v", i, err)
			}
		}
	})
}

// TestDropLaterAtTheFirstLook: who has come just before the first look has as much time to take its queues as who comes later.
func TestDropLaterAtTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := Estate{Log: slog.New(slog.DiscardHandler)}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		name := inherit.QueueName(1)
		e.Add([]carrier.Export{{Name: name, File: w}})
		defer e.DropLater(func() bool { return false })()
		for i, want := range []bool{true, true, false} {
			if got := e.Has(func(n string) bool { return n == name }); got != want {
				t.Errorf("after %d looks: %t, want %t", i, got, want)
			}
			time.Sleep(neededWithin)
			synctest.Wait()
		}
	})
}
