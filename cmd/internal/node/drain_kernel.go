package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// DrainToKernel ends the daemon that Drain would end, keeps its leases and leaves the kernel
// forwarding (Daemon.StopToKernel). If none is running, a daemon of cfg does so inside this process
// as soon as it is ready. It returns the pid of the daemon, 0 if none was running. A kernel
// that has no vxlan is an error, and then nothing has happened.
func DrainToKernel(ctx context.Context, cfg Config) (pid int, err error) {
	pid, held, err := nodefile.FindDaemon(cfg.claimedFiles())
	if err != nil {
		return 0, err
	}
	if len(held) == 0 {
		for _, file := range cfg.claimedFiles() {
			if err := leftovers.CheckFlanneld(file, nil, false); err != nil {
				return 0, err
			}
		}
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
	cfg.Mode = fit.Kernel
	d := New(cfg)
	inner, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(inner) }()
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = fmt.Errorf("the networks were not ready in time: %w", cmp.Or(context.Cause(ctx), errors.New("the daemon has ended")))
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
	mine, err := claim.NetNSOf("/proc/self/ns/net")
	its, err2 := claim.NetNSOf(fmt.Sprintf("/proc/%d/ns/net", pid))
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
		left, err := nodefile.LastLeft(file)
		if err != nil {
			return err
		}
		_, held, err := nodefile.Holder(file)
		if err != nil {
			return err
		}
		if held {
			continue // the next daemon has started already
		}
		for _, vni := range left.VNIs {
			l, err := rt.Link(dataplane.DeviceName(vni))
			if err == nil && l.Type() != "vxlan" {
				return fmt.Errorf("%w (pid %d): %s is a %s device: see its log", ErrNotHandedOver, pid, l.Attrs().Name, l.Type())
			}
		}
	}
	return nil
}
