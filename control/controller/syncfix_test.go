package controller_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control/controller"
)

// TestSyncSaysWhatHelps: the line of a Sync that failed as a whole says what to do, if that is known.
func TestSyncSaysWhatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.plane.fail["device"] = errors.New("too many open files")
		cfg := b.config(b.memory.Open(t))
		cfg.Log = slog.New(slog.NewTextHandler(b.events, &slog.HandlerOptions{ReplaceAttr: dropTimes}))
		cfg.Fix = func(error) string { return "allow more" }
		b.run(controller.New(cfg))
		time.Sleep(time.Second)
		want := `level=ERROR msg="sync: trying again" err="too many open files" fix="allow more"`
		if got := b.events.take(); !slices.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
