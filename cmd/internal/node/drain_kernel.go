package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// DrainToKernel ends the daemon that Drain would end, keeps its leases and leaves the kernel
// forwarding (Daemon.StopToKernel). If none is running, a daemon of cfg does so inside this process
// as soon as it is ready. It returns the pid of the daemon, 0 if none was running. A kernel
// that has no vxlan is an error, and then nothing has happened.
func DrainToKernel(ctx context.Context, cfg Config) (pid int, err error) {
	pid, held, err := findDaemon(cfg.claimedFiles())
	if err != nil {
		return 0, err
	}
	if len(held) == 0 {
		return 0, programKernel(ctx, cfg)
	}
	here := sameNetNS(pid) // else this process sees other devices
	if here {
		if err := kernel.Available(); err != nil {
			return pid, err
		}
	}
	if err := stopDaemon(ctx, pid, unix.SIGUSR2, held); err != nil || !here {
		return pid, err
	}
	return pid, checkHandedOver(pid, held)
}

// programKernel serves the networks by the kernel dataplane until they are ready.
func programKernel(ctx context.Context, cfg Config) error {
	cfg.Mode = Kernel
	d := New(cfg)
	inner, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(inner) }()
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = fmt.Errorf("the networks were not ready in time: %w", context.Cause(ctx))
			}
			return err
		case <-time.After(10 * time.Millisecond):
		}
		if d.Ready() {
			stop()
			return <-ended
		}
	}
}

// sameNetNS reports whether a process is in the network namespace of this one, as far as it can be
// known.
func sameNetNS(pid int) bool {
	mine, err := os.Readlink("/proc/self/ns/net")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && err2 == nil && mine == its
}

// checkHandedOver returns an error if the daemon that had these subnet files has left a device that
// is not the kernel's.
func checkHandedOver(pid int, files []string) error {
	rt, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer rt.Close()
	for _, file := range files {
		n, err := claimNode(file)
		if errors.As(err, new(*RunningError)) {
			continue // the next daemon has started already
		}
		if err != nil {
			return err
		}
		n.release()
		for _, vni := range n.left.vnis {
			l, err := rt.Link(dataplane.DeviceName(vni))
			if err == nil && l.Type() != "vxlan" {
				return fmt.Errorf("%w (pid %d): %s is a %s device: see its log", ErrNotHandedOver, pid, l.Attrs().Name, l.Type())
			}
		}
	}
	return nil
}
