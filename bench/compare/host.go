package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/compare/agent"
	"github.com/overlayd/overlayd/bench/testbed"
)

// underlayLink is every host's link to the other one.
const underlayLink = "eth0"

// host is one end of an overlay, as seen from outside.
type host struct {
	name     string
	dir      string     // of its files and logs
	underlay netip.Addr // on underlayLink
	overlay  netip.Addr // where the other host reaches it through the overlay
	agent    *exec.Cmd
	rpc      *rpc.Client
	ns       *testbed.Namespace // of the agent
}

// newHost starts a host's first process. When it ends, the host's processes, links
// and namespace, which has no name, end with it.
func newHost(name, dir string, underlay netip.Addr) (h *host, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	h = &host{name: name, dir: dir, underlay: underlay}
	h.agent = exec.Command("/proc/self/exe", agent.Argument)
	h.agent.Env = agentEnv(os.Environ())
	h.agent.Stderr = os.Stderr
	// A group of its own: Ctrl-C reaches only the parent, which then ends the hosts. Not a session:
	// the kernel's autogroups divide the processors by session, which separate hosts do not do.
	h.agent.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	in, err1 := h.agent.StdinPipe()
	out, err2 := h.agent.StdoutPipe()
	if err := errors.Join(err1, err2, h.agent.Start()); err != nil {
		return nil, fmt.Errorf("start host %s: %w (in a container this needs --privileged)", name, err)
	}
	h.rpc = rpc.NewClient(pipes{out, in})
	if h.ns, err = testbed.OpenNamespace("host "+name, h.agent.Process.Pid); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// agentEnv leaves out what would change the flags of overlayd or flanneld.
func agentEnv(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "OVERLAYD_") || strings.HasPrefix(v, "FLANNELD_") || strings.HasPrefix(v, "NOTIFY_SOCKET=")
	})
}

// pipes are both directions of a host's standard input and output.
type pipes struct {
	io.Reader
	io.WriteCloser // closing tells the agent to end; Wait closes the other direction
}

// close ends the host and waits for that.
func (h *host) close() error {
	if h.ns != nil {
		h.ns.Close()
	}
	h.rpc.Close()
	patience := time.AfterFunc(3*time.Second, func() { h.agent.Process.Kill() })
	defer patience.Stop()
	if err := h.agent.Wait(); err != nil {
		return fmt.Errorf("end host %s: %w", h.name, err)
	}
	return nil
}

// call calls a method of the agent. When ctx ends it returns at once.
func (h *host) call(ctx context.Context, method string, in, out any) error {
	c := h.rpc.Go("Agent."+method, in, out, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
		if c.Error != nil {
			return fmt.Errorf("host %s: %w", h.name, c.Error)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs a program in the host to its end.
func (h *host) run(ctx context.Context, argv ...string) (out string, err error) {
	err = h.call(ctx, "Exec", agent.Command{Argv: argv, Dir: h.dir}, &out)
	return out, err
}

// start starts a daemon in the host. Its output goes to <program>.log.
func (h *host) start(ctx context.Context, env []string, argv ...string) error {
	log := h.path(filepath.Base(argv[0]) + ".log")
	return h.call(ctx, "Start", agent.Command{Argv: argv, Env: env, Dir: h.dir, Log: log}, new(agent.Nothing))
}

// check fails if a daemon of the host has ended.
func (h *host) check(ctx context.Context) error {
	return h.call(ctx, "Check", agent.Nothing{}, new(agent.Nothing))
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// await polls until ready returns true; it fails when a daemon of the host ends, or ctx.
func (h *host) await(ctx context.Context, what string, ready func() bool) error {
	for !ready() {
		if err := h.check(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("host %s: wait for %s: %w", h.name, what, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (h *host) awaitFile(ctx context.Context, path string) error {
	return h.await(ctx, "file "+path, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func (h *host) awaitLink(ctx context.Context, name string) error {
	return h.await(ctx, "link "+name, func() bool { return h.ns.HasLink(name) })
}

// setLink gives a link its address and MTU (0: as it is) and sets it up.
func (h *host) setLink(name string, addr netip.Prefix, mtu int) error {
	if mtu > 0 {
		if err := h.ns.SetMTU(name, mtu); err != nil {
			return err
		}
	}
	if err := h.ns.AddAddr(name, addr); err != nil {
		return err
	}
	return h.ns.SetUp(name)
}

// logs returns the ends of the logs of the host's daemons.
func (h *host) logs() string {
	files, _ := filepath.Glob(h.path("*.log"))
	var b strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			continue
		}
		fmt.Fprintf(&b, "host %s, %s:\n%s", h.name, filepath.Base(file), testbed.Tail(string(text), 8))
	}
	return b.String()
}
