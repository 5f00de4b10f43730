package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a daemon that was started in a host.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	err    error         // how it ended; valid after exited
}

// Command is a daemon to start.
type Command struct {
	Argv []string
	Env  []string // the whole environment
	Dir  string
	Log  string // file for its output
}

// Start starts a daemon in the namespace, in a session of its own: a Ctrl-C on the
// terminal does not reach it. It may outlive this process.
func (n *Namespace) Start(c Command) (*Process, error) {
	log, err := os.Create(c.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.Env, c.Dir, log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := n.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	// Stop waits for it.
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// Name is the name of the program.
func (p *Process) Name() string { return filepath.Base(p.cmd.Path) }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// State says how the process ended. Call it after Exited only.
func (p *Process) State() string { return p.cmd.ProcessState.String() }

// Stop ends the process and waits for that; after patience it kills it. It is an
// error if the process had ended before, reports an error or has to be killed.
func (p *Process) Stop(patience time.Duration) error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s had ended by itself (%s)", p.Name(), p.State())
	default:
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name(), err)
	}
	select {
	case <-p.exited:
		if p.err != nil {
			return fmt.Errorf("%s ended with an error when it was stopped: %w", p.Name(), p.err)
		}
		return nil
	case <-time.After(patience):
	}
	p.cmd.Process.Kill()
	<-p.exited
	return fmt.Errorf("%s did not stop within %s and was killed", p.Name(), patience)
}
