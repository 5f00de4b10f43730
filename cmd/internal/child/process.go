package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Config says what to run.
type Config struct {
	Name string // for the log, such as "embedded etcd"
	// Args returns the arguments of this program. last is why the child before has ended, nil for the first
	// one; times is how many have ended for that reason one after the other.
	Args func(last *Error, times int) []string
	// Crash says what a panic of the child means, in front of its text; "": nothing.
	Crash string
	Log   *slog.Logger
	Fix   func(error) string // what to do about an error; "": nothing
	// Holder says who has the TCP port of the child: the daemon may see more than a child without rights. nil: it has none.
	Holder func() string

	late time.Duration // after which a child that is not ready is reported; 0: late
}

const (
	// The pause before another child is short enough that the part is back in five seconds after an
	// obstacle, such as a full disk, has gone.
	againLow, againHigh = 100 * time.Millisecond, 2 * time.Second
	settled             = time.Minute             // a child that ran for that long has worked
	longGap             = 10 * time.Second        // without a child: it is logged, whatever was logged before
	stopPatience        = 1500 * time.Millisecond // from the end of its input to its own end
	killPatience        = 500 * time.Millisecond  // for the end of one that is killed
	late                = 30 * time.Second        // an etcd gives up before, unless it cannot even do that
)

// Process is a part of the daemon that runs in a process of its own.
type Process struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}
	first  chan struct{} // closed when the first child is ready or has ended
	once   sync.Once     // closes first

	mu      sync.Mutex
	status  status.Server
	ran     bool  // a child was ready once
	said    bool  // the log says that no child is ready
	stopErr error // of the last child

	refusals uint64 // of this child

	failures pace.Notices
	records  pace.Notices
}

// Start starts the child, and from then on another one whenever it has ended. Its end is not an error of the daemon:
// it is logged, and Status has it. The caller must Stop it.
func Start(cfg Config) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{cfg: cfg, cancel: cancel, done: make(chan struct{}), first: make(chan struct{})}
	go p.run(ctx)
	return p
}

// First is closed when the first child is ready, or has ended before it was.
func (p *Process) First() <-chan struct{} { return p.first }

// Status returns how the part is. It may be called at any time.
func (p *Process) Status() status.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Stop ends the child and waits for that. An error means that it had to be killed, and says if it still runs.
func (p *Process) Stop() error {
	p.cancel()
	<-p.done
	return p.stopErr
}

// run runs one child after the other until ctx ends.
func (p *Process) run(ctx context.Context) {
	defer close(p.done)
	again := pace.Backoff{Low: againLow, High: againHigh}
	var last *Error
	for times := 0; ; {
		began := time.Now()
		err := p.runOnce(ctx, last, times)
		if ctx.Err() != nil {
			p.stopErr = err
			return
		}
		e := asError(err)
		if time.Since(began) > settled {
			last, times = nil, 0
			again.Reset()
		}
		if last != nil && last.Reason != e.Reason {
			times = 0
		}
		last, times = e, times+1
		p.failed(e)
		if !pace.Sleep(ctx, again.Next(), nil) {
			return
		}
	}
}

// runOnce runs one child, and returns why it has ended.
func (p *Process) runOnce(ctx context.Context, last *Error, times int) error {
	p.mu.Lock()
	p.status.Starts++
	p.status.Closed = ""
	p.refusals = 0
	nth := p.status.Starts
	p.mu.Unlock()
	cmd := exec.Command("/proc/self/exe", p.cfg.Args(last, times)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = environment(os.Environ())
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.cfg.Name, err)
	}
	defer time.AfterFunc(cmp.Or(p.cfg.late, late), func() { p.late(nth) }).Stop()
	var read sync.WaitGroup
	var why *Error
	var crash string
	read.Go(func() { why = p.readOut(out, cmd.Process.Pid) })
	read.Go(func() { crash = readCrash(errs) })
	ended, gone := make(chan struct{}), make(chan error, 1)
	go func() {
		read.Wait()
		close(ended)
		gone <- cmd.Wait()
	}()
	if killed := stop(ctx, ended, in.Close, cmd.Process.Kill); killed {
		return p.killed(gone)
	}
	err = <-gone
	return p.why(ctx, why, crash, err)
}

// killed returns the error of a child that had to be killed. It does not wait for long: a process that waits for a disk ends only when that answers.
func (p *Process) killed(gone <-chan error) error {
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	select {
	case <-gone:
		return fmt.Errorf("%s did not end within %s, and was killed", p.cfg.Name, stopPatience)
	case <-patience.C:
		return fmt.Errorf("%s did not end within %s, was killed, and still runs: it may wait for a disk that does not answer", p.cfg.Name, stopPatience)
	}
}

// stop ends a child when ctx does, unless that has ended before, and reports whether it had to be killed.
func stop(ctx context.Context, ended <-chan struct{}, end, kill func() error) (killed bool) {
	select {
	case <-ended:
		return false
	case <-ctx.Done():
	}
	_ = end() // an error would mean that the pipe is closed
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-ended:
		return false
	case <-patience.C:
		_ = kill() // an error would mean that it has ended
		return true
	}
}

// why returns the error of a child that has ended: what it said itself, or what Go printed, or how it ended.
func (p *Process) why(ctx context.Context, said *Error, crash string, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case said != nil:
		return said
	case crash != "":
		e := crashError(crash)
		if e.Reason == ReasonCrash && p.cfg.Crash != "" {
			e.Text = p.cfg.Crash + ": " + e.Text
		}
		return e
	case err != nil:
		return fmt.Errorf("%s ended: %w", p.cfg.Name, err)
	}
	return errors.New(p.cfg.Name + " ended by itself")
}

// failed logs that there is no child for now: once for each reason in a while, and once for each time that it lasts.
func (p *Process) failed(err *Error) {
	now := time.Now()
	p.mu.Lock()
	p.noteRunning(false)
	fix := p.cfg.Fix(err)
	p.status.PID, p.status.Err, p.status.Fix, p.status.Closed = 0, err.Text, fix, ""
	unsaid := !p.said && now.Sub(p.status.Since) >= longGap
	p.mu.Unlock()
	due, _ := p.failures.Due(now, pace.Notice{Key: err.Reason, Text: err.stable()})
	if len(due) > 0 || unsaid {
		attrs := []any{"err", err.Text}
		if fix != "" {
			attrs = append(attrs, "fix", fix)
		}
		p.cfg.Log.Error(p.cfg.Name+" does not run: starting it again until it does; forwarding goes on", attrs...)
		p.mu.Lock()
		p.said = true
		p.mu.Unlock()
	}
	p.once.Do(func() { close(p.first) })
}

// late reports a child that is neither ready nor has ended: nobody else does. Another one would only wait beside it.
func (p *Process) late(nth uint64) {
	p.mu.Lock()
	if p.status.Running || p.status.Starts != nth {
		p.mu.Unlock()
		return
	}
	err := &Error{ReasonLate, "it does not become ready, nor does it end"}
	p.noteRunning(false)
	fix := p.cfg.Fix(err)
	p.status.Err, p.status.Fix, p.said = err.Text, fix, true
	p.mu.Unlock()
	p.cfg.Log.Error(p.cfg.Name+" is not ready yet: waiting; forwarding goes on", "err", err.Text, "fix", fix)
}

// ready notes that the child works, and logs it the first time and after a failure that was logged.
func (p *Process) ready(pid int) {
	p.mu.Lock()
	first, again, since := !p.ran, p.said, p.status.Since
	p.noteRunning(true)
	p.status.PID = pid
	p.status.Err, p.status.Fix, p.ran, p.said = "", "", true, false
	p.mu.Unlock()
	switch {
	case first:
		p.cfg.Log.Info(p.cfg.Name+" runs", "pid", pid)
	case again:
		p.cfg.Log.Info(p.cfg.Name+" runs again", "pid", pid, "gap", time.Since(since).Round(time.Millisecond))
	}
	p.once.Do(func() { close(p.first) })
}

// closed notes and logs that the child works without its port.
func (p *Process) closed(err *Error) {
	holder := err.Text
	if p.cfg.Holder != nil {
		holder = p.cfg.Holder() + " has the port"
	}
	p.mu.Lock()
	fix := p.cfg.Fix(err)
	p.status.Closed, p.status.Fix = holder, fix
	p.mu.Unlock()
	due, _ := p.failures.Due(time.Now(), pace.Notice{Key: "port", Text: err.stable()})
	if len(due) == 0 {
		return
	}
	attrs := []any{"err", err.Text, "holder", holder}
	if fix != "" {
		attrs = append(attrs, "fix", fix)
	}
	p.cfg.Log.Warn(p.cfg.Name+" serves this host alone: another user has its TCP port. Trying again until it is free; all else goes on", attrs...)
}

// opened notes that the child has its port after all.
func (p *Process) opened() {
	p.mu.Lock()
	p.status.Closed, p.status.Fix = "", ""
	p.mu.Unlock()
	p.cfg.Log.Info(p.cfg.Name + " has its TCP port: other hosts reach it")
}

// refused notes how many clients this child has refused. Those of the children before are counted too.
func (p *Process) refused(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Refused, p.refusals = p.status.Refused+n-p.refusals, n
}

// noteRunning is called with mu held.
func (p *Process) noteRunning(running bool) {
	if p.status.Running != running || p.status.Since.IsZero() {
		p.status.Running, p.status.Since = running, time.Now()
	}
}

// environment leaves out what the child has no need to know: passwords, and the socket of the service manager.
func environment(env []string) (kept []string) {
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if !strings.Contains(name, "PASSWORD") && name != "NOTIFY_SOCKET" {
			kept = append(kept, v)
		}
	}
	return kept
}
