package etcdchild

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
)

const (
	// startPatience bounds how long the daemon waits for its etcd before it goes on without.
	startPatience = 5 * time.Second
	// crashes in a row, and the data are taken for damaged.
	crashes = 3
)

// Start starts the process, and waits until it is ready, a while or until ctx ends. fix says what to do about an error.
func Start(ctx context.Context, o *flags.Etcd, log *slog.Logger, fix func(error) string) *child.Process {
	p := child.Start(child.Config{
		Name: "embedded etcd",
		Args: func(last *child.Error, times int) []string {
			return arguments(o, log.Enabled(ctx, slog.LevelDebug), o.Rebuild && isDamaged(last, times))
		},
		Crash: "it crashed, so its data are probably damaged",
		Log:   log,
		Fix:   fix,
		Holder: func() string {
			taken, err := new(tcpport.TakenError), tcpport.Explain(address(o.ListenURL), unix.EADDRINUSE)
			if !errors.As(err, &taken) {
				return err.Error()
			}
			return taken.Holder()
		},
	})
	select {
	case <-p.First():
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	return p
}

// arguments are those of the process. Clients may change only what is below the prefix.
func arguments(o *flags.Etcd, debug, setAside bool) []string {
	return []string{"etcd", "--dir=" + o.DataDir, "--listen=" + o.ListenURL, "--prefix=" + o.Prefix, "--pki-dir=" + o.PKIDir,
		"--debug=" + strconv.FormatBool(debug), "--set-aside=" + strconv.FormatBool(setAside)}
}

// isDamaged reports whether etcd cannot use its data: it says so, or ends again and again in a panic that has
// nothing to do with the disk.
func isDamaged(last *child.Error, times int) bool {
	return last != nil && (last.Reason == Damaged || last.Reason == child.ReasonCrash && times >= crashes)
}
