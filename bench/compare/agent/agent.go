// Package agent is the first process of each host that bench/compare makes: it runs the host's daemons and its traffic. It
// is the same program, started again with [Argument], and does what it is called for over its standard input and output
// (net/rpc). What a call asks for and what it answers are the types here.
//
// agent.go has the process and its daemons; ping.go, tcp.go and udp.go the traffic that is measured; stream.go, icmp.go,
// flood.go and packet.go what attacks need.
package agent

import (
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

// Argument as the only argument makes this program the agent of one host.
const Argument = "agent"

// Agent is the first process of a host. It has a network, process and mount
// namespace of its own (the parent's clone flags), and runs the host's daemons and
// traffic. All of them end with it, whatever ends it. Its methods are called by
// net/rpc over its standard input and output.
type Agent struct {
	mu      sync.Mutex
	daemons []*daemon
	udp     []testbed.Socket // listening, not yet read
}

// daemon is one started process; state is set when it has ended.
type daemon struct {
	name  string
	state string
}

// Nothing is the empty argument or result of a call.
type Nothing struct{}

// Run serves until its parent closes the pipe, or ends.
func Run() error {
	if err := prepareHost(); err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.Register(new(Agent)); err != nil {
		return err
	}
	in := &parentPipe{File: os.Stdin, gone: make(chan struct{})}
	go server.ServeConn(in) // it waits for calls in progress; the end of this process does not
	<-in.gone
	return nil
}

// prepareHost gives the host a /run of its own (control sockets, pid files) and
// a loopback.
func prepareHost() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// parentPipe reads calls from standard input and writes answers to standard output.
type parentPipe struct {
	*os.File
	once sync.Once
	gone chan struct{} // closed when the parent has closed its end, or has ended
}

// Read implements io.Reader.
func (p *parentPipe) Read(b []byte) (int, error) {
	n, err := p.File.Read(b)
	if err != nil {
		p.once.Do(func() { close(p.gone) })
	}
	return n, err
}

// Write implements io.Writer.
func (p *parentPipe) Write(b []byte) (int, error) { return os.Stdout.Write(b) }

// Command is a program to run in the host.
type Command struct {
	Argv []string
	Env  []string // in addition to the agent's own
	Log  string   // file for the output of a daemon
	Dir  string
}

func (c Command) cmd() *exec.Cmd {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = c.Dir
	return cmd
}

// Exec runs a program to its end and returns what it wrote.
func (a *Agent) Exec(c Command, out *string) error {
	b, err := c.cmd().CombinedOutput()
	*out = strings.TrimSpace(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Argv, " "), err, *out)
	}
	return nil
}

// Start starts a daemon, which lives as long as the host.
func (a *Agent) Start(c Command, _ *Nothing) error {
	log, err := os.Create(c.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.cmd()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	d := &daemon{name: c.Argv[0]}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.daemons = append(a.daemons, d)
	go func() { // ends with the daemon; the host's end ends both
		err := cmd.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		d.state = cmd.ProcessState.String()
		if err != nil {
			d.state = err.Error()
		}
	}()
	return nil
}

// Check fails if a daemon has ended: they run as long as the host.
func (a *Agent) Check(_ Nothing, _ *Nothing) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.daemons, func(d *daemon) bool { return d.state != "" })
	if i < 0 {
		return nil
	}
	return errors.New(a.daemons[i].name + " has ended: " + a.daemons[i].state)
}
