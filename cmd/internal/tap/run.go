package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/stream"
)

// Program is the name of the program that decodes captures.
const Program = "overlayd-capture"

// ErrNoProgram says that it is not there.
var ErrNoProgram = errors.New("no " + Program)

// ErrSaid is the end of a program that has said on standard error what is wrong.
var ErrSaid = errors.New(Program + " has failed")

// ErrUnread is the end of a program because whoever read its output has gone.
var ErrUnread = errors.New("nobody reads the output of " + Program)

// FindProgram returns the path of the program: beside this one, or in PATH.
func FindProgram() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own program: %w", err)
	}
	dir := filepath.Dir(own)
	if path, err := exec.LookPath(filepath.Join(dir, Program)); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(Program); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%w: it is neither in %s nor in PATH", ErrNoProgram, dir)
}

const (
	// stopPatience is how long a daemon may take for the last of a stream.
	stopPatience = 3 * time.Second
	pipeSize     = 1 << 20
)

// Client is one question, and what becomes of the answer.
type Client struct {
	Admin   *admin.Client
	Query   stream.Query
	Program string   // FindProgram
	Args    []string // of the program
	// Open returns where the program writes to, once there is a stream.
	Open func() (*os.File, error)
}

// Run has the program decode what the daemon sends, until ctx ends, the daemon or the program does. ErrSaid: the program
// has said what is wrong.
func (c *Client) Run(ctx context.Context) error {
	s, err := c.Admin.Stream(ctx, stream.Path+c.Query.String())
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // nothing was captured yet
	case err != nil:
		return err
	}
	defer s.Close()
	out, err := c.Open()
	if err != nil {
		return err
	}
	if err := c.decode(ctx, s, out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// decode runs the program.
func (c *Client) decode(ctx context.Context, s *admin.Stream, out *os.File) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize) // a smaller one works, too
	cmd := exec.Command(c.Program, c.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, out, os.Stderr
	err = cmd.Start()
	r.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", Program, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = s.Stop() // then it has ended by itself
		time.AfterFunc(stopPatience, func() { s.Close() })
	})
	defer stop()
	var wait sync.WaitGroup
	wait.Go(func() {
		err = cmd.Wait()
		s.Close() // nobody takes what may come
	})
	_, _ = io.Copy(w, s) // the program sees whether the stream is whole, and says why it takes no more
	w.Close()
	wait.Wait()
	return ended(err)
}

// ended says how the program has ended.
func ended(err error) error {
	exit := new(exec.ExitError)
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == unix.SIGPIPE {
		return ErrUnread
	}
	if exit.ExitCode() == 1 {
		return ErrSaid
	}
	return fmt.Errorf("%s: %w", Program, err)
}
