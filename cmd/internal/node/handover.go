package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// errHandover says that this process forwards no more, and the kernel does not either.
var errHandover = errors.New("hand over to the kernel")

const (
	syncPatience = 15 * time.Second      // bounds how long to wait for a Sync that runs, before anything is stopped
	handoverRest = 50 * time.Millisecond // for what is still in the queues of this process when the kernel forwards
)

// StopToKernel ends Run as the end of its context does, and leaves the kernel forwarding: vxlan
// devices with the MACs that this node publishes stand in the place of TUN devices, and leases and
// subnet files stay. Whoever starts next on this host adopts them, flanneld too. If the kernel cannot do that,
// StopToKernel returns why, and Run goes on. If that shows too late to go on, Run ends and returns it too.
func (d *Daemon) StopToKernel() error {
	run := d.run.Load()
	if run == nil {
		return errors.New("the daemon has not begun")
	}
	sessions := d.expects.forwarding()
	kernels := make([]*kernel.Dataplane, len(sessions))
	for i, s := range sessions {
		k, err := s.parts.OpenBeside(s.controller.Status().MTU, s.overlay.VTEPs())
		if err != nil {
			return err
		}
		defer k.Close()
		kernels[i] = k
	}
	unlock, err := run.holdSyncs(sessions, syncPatience)
	if err != nil {
		return err
	}
	if err := d.cfg.Keeper.End(); err != nil { // the kernel needs the UDP port
		unlock()
		return err
	}
	defer unlock() // when Run has been told to end
	err = handOverAll(sessions, kernels)
	d.leftToKernel.Store(err == nil)
	run.end(err)
	return err
}

// LeftToKernel reports whether StopToKernel has ended Run, and the kernel forwards.
func (d *Daemon) LeftToKernel() bool { return d.leftToKernel.Load() }

// handOverAll makes the kernel forward for all sessions, beside their own dataplanes if that is possible, then ends
// these, and has the kernel's devices take the places of theirs.
func handOverAll(sessions []*Session, kernels []*kernel.Dataplane) error {
	makeRoom(sessions) // all of them first: networks may share the UDP port, which the kernel needs
	errs := make([]error, len(sessions))
	for i, s := range sessions {
		errs[i] = s.parts.HandOver(kernels[i], s.overlay.Reached())
	}
	for _, s := range sessions {
		s.userspace().LetGo()
	}
	time.Sleep(handoverRest)
	for i, s := range sessions {
		s.stopForwarding()
		if errs[i] == nil {
			errs[i] = s.parts.TakePlace(kernels[i], s.overlay.Reached())
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%w: VNI %d: %w", errHandover, s.config.Backend.VNI, errs[i])
		}
	}
	return errors.Join(errs...)
}

// makeRoom frees the UDP ports of sessions, which go on forwarding. If one cannot be freed, none of them goes on.
func makeRoom(sessions []*Session) {
	for _, s := range sessions {
		if err := s.userspace().MakeRoom(); err != nil {
			s.network.log.Info("the UDP port changes hands without a detour: a few packets may be lost", "why", err)
			for _, s := range sessions {
				s.stopForwarding()
			}
			return
		}
	}
}

// userspace returns the dataplane of one of the sessions that Daemon.forwarding returns.
func (s *Session) userspace() *userspace.Dataplane {
	return s.overlay.Forwarding().Dataplane.(*userspace.Dataplane)
}

// forwarding returns the sessions whose packets this process forwards.
func (e *expected) forwarding() (all []*Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		if s := n.snapshot.Load().session; s != nil && s.overlay.Mode() == fit.Userspace {
			all = append(all, s)
		}
	}
	return all
}

// stopForwarding ends the dataplane and nothing else of the session.
func (s *Session) stopForwarding() {
	if err := s.overlay.Forwarding().Stop(); err != nil {
		s.network.log.Debug("cannot close dataplane", "err", err)
	}
}
