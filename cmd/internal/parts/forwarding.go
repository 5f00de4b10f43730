package parts

import (
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
)

// ErrUnfit says that the dataplane which works here cannot carry the network.
var ErrUnfit = errors.New("network config")

// openForwarding opens the part that carries the packets.
func (l *List) openForwarding(mtu int) (dataplane.Part, error) {
	f, err := l.chooseForwarding(mtu)
	if err != nil {
		return nil, err // not f: a nil *overlay.Forwarding makes an interface that is not nil
	}
	l.forward = f
	return f, nil
}

// chooseForwarding opens the dataplane that is asked for, unless that of the last session goes on. In auto mode the kernel's is opened for
// real, device and all; whatever refuses that is the reason to take the userspace one.
func (l *List) chooseForwarding(mtu int) (*overlay.Forwarding, error) {
	if f := l.Kept(); f != nil {
		l.forwardsItself()
		return f, nil
	}
	mode := l.Mode
	if mode == fit.Userspace {
		return l.openUserspace(mtu)
	}
	c := l.Network
	k, err := l.openGuardedKernel(mtu)
	switch {
	case err == nil:
		return overlay.NewForwarding(k, fit.Kernel, nil, func() {}), nil
	case mode == fit.Kernel || IsPortTaken(err): // the other one needs the port, too
		return nil, err
	case c.Backend.GBP || c.Backend.Learning:
		return nil, fmt.Errorf("%w: GBP and Learning need the kernel dataplane, which does not work here: %w", ErrUnfit, err)
	}
	l.Log.Warn("kernel dataplane refused: taking the userspace one", l.LogAttrs(err)...)
	u, uerr := l.openUserspace(mtu)
	if uerr != nil {
		return nil, fmt.Errorf("neither dataplane works: kernel: %w; userspace: %w", err, uerr)
	}
	return u, nil
}

// openKernel opens the kernel dataplane, which needs the UDP port that another daemon may have handed over. In auto
// mode that is kept if the kernel has no vxlan.
func (l *List) openKernel(mtu int) (*kernel.Dataplane, error) {
	if l.Inherited.Has() {
		if err := kernel.Available(); err != nil && l.Mode == fit.Auto {
			return nil, err
		}
		l.Inherited.Drop("the kernel dataplane needs the UDP port")
	}
	return kernel.Open(l.kernelConfig(mtu))
}

// kernelConfig is what the kernel dataplane is opened with.
func (l *List) kernelConfig(mtu int) kernel.Config {
	c := l.Network
	return kernel.Config{
		Log:       l.Log,
		Underlays: l.Underlay.Underlays(c.EnableIPv4, c.EnableIPv6),
		VNI:       c.Backend.VNI,
		Port:      c.Backend.Port,
		MTU:       mtu,
		GBP:       c.Backend.GBP,
		Learning:  c.Backend.Learning,
		Deaf:      l.Deaf,
		MayBeUp:   l.guardHolds,
	}
}
