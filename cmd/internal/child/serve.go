package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoParent says that no daemon has started this process.
var ErrNoParent = errors.New("the standard input is not a pipe: only the daemon starts this")

// Parent is the child's way to the daemon.
type Parent struct {
	Log *slog.Logger // into the daemon's log

	mu  sync.Mutex
	out io.Writer
}

// Ready tells that the child does its work now.
func (p *Parent) Ready() { p.tell(event{Event: eventReady}) }

// Failed tells why the child is about to end.
func (p *Parent) Failed(err *Error) {
	p.tell(event{Event: eventFailed, Reason: err.Reason, Err: err.Text})
}

// Refused tells how many clients were refused so far.
func (p *Parent) Refused(n uint64) { p.tell(event{Event: eventRefused, Count: n}) }

// Closed tells that the child works without its TCP port, which another user has, and waits for it.
func (p *Parent) Closed(err *Error) {
	p.tell(event{Event: eventClosed, Reason: err.Reason, Err: err.Text})
}

// Opened tells that the child has its port after all.
func (p *Parent) Opened() { p.tell(event{Event: eventOpened}) }

func (p *Parent) tell(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		line = []byte(`{"event":"failed","err":"a text that is no text"}`)
	}
	_, _ = p.Write(append(line, '\n')) // if the daemon has gone, nobody is left to tell
}

// Write implements io.Writer: lines do not mix.
func (p *Parent) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Serve calls serve with a context that ends when the daemon stops this process, or has gone. debug
// reports whether the daemon logs debug messages.
func Serve(ctx context.Context, debug bool, serve func(context.Context, *Parent) error) error {
	var in unix.Stat_t
	if err := unix.Fstat(0, &in); err != nil || in.Mode&unix.S_IFMT != unix.S_IFIFO {
		return fmt.Errorf("%w (%v)", ErrNoParent, err)
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() { // ends with the process: nothing interrupts the read
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	p := &Parent{out: os.Stdout}
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	p.Log = slog.New(slog.NewJSONHandler(p, &slog.HandlerOptions{Level: level}))
	return serve(ctx, p)
}
