package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// underlayLink is a host's link to the underlay.
const underlayLink = "eth0"

// readyTimeout is how long a daemon may take to be ready.
const readyTimeout = 15 * time.Second

// Host is a network namespace on the underlay, with a daemon in it and a pod behind it.
type Host struct {
	Name string     // "host1"
	Addr netip.Addr // on the underlay, on link eth0
	Dir  string     // of its files
	NS   *Namespace
	// Pod is nil before AddPod.
	Pod *Namespace
	// Lease is zero before AwaitReady.
	Lease Lease
	// Dataplane names what the daemon forwards with, for reports.
	Dataplane string

	num    int // from 1
	prefix Prefix
	daemon *Process // nil before it is started
	log    string   // its output
}

// SubnetFile is the subnet file of the host's daemon.
func (h *Host) SubnetFile() string { return filepath.Join(h.Dir, "subnet.env") }

// Running reports whether a daemon was started and not found dead.
func (h *Host) Running() bool { return h.daemon != nil }

// Start starts a program with the subnet file's flag and args in the host. Its
// environment is env.
func (h *Host) Start(program string, env []string, args ...string) (err error) {
	argv := append([]string{program, SubnetFileFlag, h.SubnetFile()}, args...)
	h.log = filepath.Join(h.Dir, filepath.Base(program)+".log")
	h.daemon, err = h.NS.Start(Command{Argv: argv, Env: env, Dir: h.Dir, Log: h.log})
	return err
}

// AwaitReady waits for the subnet file, which the daemon writes when it is ready,
// and takes the lease from it.
func (h *Host) AwaitReady(ctx context.Context) (err error) {
	deadline := time.After(readyTimeout)
	for {
		if h.Lease, err = ReadLease(h.SubnetFile()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-h.daemon.Exited():
			err := fmt.Errorf("%s ended before it was ready (%s)", h.daemon.Name(), h.daemon.State())
			h.daemon = nil // nothing to stop
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("%s was not ready within %s", h.daemon.Name(), readyTimeout)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// AddPod does what a CNI plugin does with the lease.
func (h *Host) AddPod() (err error) {
	if h.Pod, err = NewNamespace(fmt.Sprintf("%spod%d", h.prefix, h.num)); err != nil {
		return err
	}
	if err := h.NS.AddVeth("pod0", h.Pod, "eth0", h.Lease.MTU); err != nil {
		return err
	}
	if err := h.NS.AddAddr("pod0", h.Lease.Gateway); err != nil {
		return err
	}
	if err := h.Pod.AddAddr("eth0", netip.PrefixFrom(h.Lease.Pod(), h.Lease.Gateway.Bits())); err != nil {
		return err
	}
	return h.Pod.AddDefaultRoute(h.Lease.Gateway.Addr())
}

// PodName is the name of the host's pod.
func (h *Host) PodName() string { return fmt.Sprintf("pod%d", h.num) }

// Logs returns the last lines of the daemon's log, or nothing if it was not started.
func (h *Host) Logs(lines int) string {
	text, err := os.ReadFile(h.log)
	if err != nil {
		return ""
	}
	return Tail(string(text), lines)
}

// stop ends the daemon.
func (h *Host) stop() error {
	if h.daemon == nil {
		return nil
	}
	if err := h.daemon.Stop(stopPatience); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}
