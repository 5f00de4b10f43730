package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
)

// errHandover says that this process forwards no more, and the kernel does not either.
var errHandover = errors.New("hand over to the kernel")

// handoverTimeout bounds how long the kernel is programmed.
const handoverTimeout = 10 * time.Second

// StopToKernel ends Run as the end of its context does, and leaves the kernel forwarding: vxlan
// devices with the MACs that this node publishes stand in the place of TUN devices, and leases and
// subnet files stay. Whoever starts next on this host adopts them, flanneld too. It returns why the
// kernel cannot do that, and then Run goes on; if it turns out too late, Run returns that.
func (d *Daemon) StopToKernel() error {
	end := d.end.Load()
	if end == nil {
		return errors.New("the daemon has not begun")
	}
	sessions := d.expects.forwarding()
	kernels := make([]*kernel.Dataplane, len(sessions))
	for i, s := range sessions {
		k, err := kernel.Open(s.handoverConfig())
		if err != nil {
			return err
		}
		defer k.Close()
		kernels[i] = k
	}
	// Until Run has been told to end, nobody syncs what no longer forwards.
	for _, s := range sessions {
		s.overlay.mu.Lock()
		defer s.overlay.mu.Unlock()
	}
	// All of them first: networks may share the UDP port, which the kernel needs.
	for _, s := range sessions {
		s.stopForwarding()
	}
	var errs []error
	for i, s := range sessions {
		if err := s.handOver(kernels[i]); err != nil {
			errs = append(errs, fmt.Errorf("%w: VNI %d: %w", errHandover, s.config.Backend.VNI, err))
		}
	}
	err := errors.Join(errs...)
	(*end)(err)
	return err
}

// forwarding returns the sessions whose packets this process forwards.
func (e *expected) forwarding() (all []*Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		if s := n.snapshot.Load().session; s != nil && s.overlay.mode() == Userspace {
			all = append(all, s)
		}
	}
	return all
}

// handoverConfig is that of a kernel dataplane whose VTEPs are as this node publishes them, and which
// is opened while this process forwards.
func (s *Session) handoverConfig() kernel.Config {
	c := s.kernelConfig(s.controller.Status().MTU)
	c.Later = true
	for i := range c.Underlays {
		u := &c.Underlays[i]
		for _, v := range s.overlay.VTEPs() {
			if v.Addr == u.Public {
				u.MAC = v.MAC
			}
		}
	}
	return c
}

// stopForwarding ends the dataplane and nothing else of the session.
func (s *Session) stopForwarding() {
	f := s.overlay.forward
	f.quit()
	<-f.ended
	if err := f.Close(); err != nil {
		s.network.log.Debug("cannot close dataplane", "err", err)
	}
}

// handOver makes the kernel forward to all peers to which this process did.
func (s *Session) handOver(k *kernel.Dataplane) error {
	w := s.overlay.reached.Load()
	if w == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), handoverTimeout)
	defer cancel()
	_, err := k.Sync(ctx, *w)
	peers, err := dataplane.PeerErrors(err)
	for _, p := range peers {
		s.network.log.Warn("the kernel cannot reach a peer", "err", p)
	}
	s.network.log.Info("handed over to the kernel", "vni", s.config.Backend.VNI, "peers", len(w.Peers)-len(peers))
	return err
}
