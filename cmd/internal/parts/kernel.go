package parts

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
)

// programTimeout bounds how long it takes to program the kernel.
const programTimeout = 10 * time.Second

// OpenBeside opens a kernel dataplane while the userspace one still forwards, with the VTEPs that this node publishes.
func (l *List) OpenBeside(mtu int, vteps []dataplane.VTEP) (*kernel.Dataplane, error) {
	c := l.kernelConfig(mtu)
	c.Later = true
	for i := range c.Underlays {
		u := &c.Underlays[i]
		for _, v := range vteps {
			if v.Addr == u.Public {
				u.MAC = v.MAC
			}
		}
	}
	return kernel.Open(c)
}

// HandOver makes the kernel forward to all peers to which this process did. w is what this process has reached; nil: it has not forwarded.
func (l *List) HandOver(k *kernel.Dataplane, w *dataplane.Wanted) error {
	if w == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	if err := l.guardKernel(*w, false); err != nil {
		return err
	}
	_, err := k.Sync(ctx, *w)
	peers, whole := dataplane.PeerErrors(err)
	for _, p := range peers {
		l.Log.Warn("the kernel cannot reach a peer", "err", p)
	}
	if whole != nil {
		return whole
	}
	l.Log.Info("handed over to the kernel", "vni", l.Network.Backend.VNI, "peers", len(w.Peers)-len(peers))
	return nil
}

// TakePlace gives the kernel's devices the names of the TUN devices. w is as in HandOver.
func (l *List) TakePlace(k *kernel.Dataplane, w *dataplane.Wanted) error {
	if w == nil {
		return nil // nor does k forward
	}
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	_, whole := dataplane.PeerErrors(k.TakePlace(ctx))
	if whole == nil {
		whole = l.guardKernel(*w, true)
	}
	return whole
}
