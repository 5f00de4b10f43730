package main

import (
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// openDataplane opens the dataplane that --dataplane asks for and returns it
// with its mode and what is to be called after its Run. In auto mode the kernel's is
// opened for real, device and all; whatever refuses that is the reason for taking
// the userspace one.
func (n *network) openDataplane(c control.Network, mtu int) (dp dataplane.Dataplane, mode string, after func(), err error) {
	if n.dataplane == modeUserspace {
		dp, after, err := n.openUserspace(c, mtu)
		return dp, modeUserspace, after, err
	}
	k, err := kernel.Open(kernel.Config{
		Log:       n.log,
		Underlays: n.iface.Underlays(c.EnableIPv4, c.EnableIPv6),
		VNI:       c.Backend.VNI,
		Port:      c.Backend.Port,
		MTU:       mtu,
		GBP:       c.Backend.GBP,
		Learning:  c.Backend.Learning,
	})
	if err == nil {
		return k, modeKernel, func() {}, nil
	}
	if errors.Is(err, kernel.ErrPermission) {
		err = fmt.Errorf("%w (in a container: docker run --cap-add NET_ADMIN)", err)
	}
	if n.dataplane == modeKernel {
		return nil, "", nil, err
	}
	if c.Backend.GBP || c.Backend.Learning {
		return nil, "", nil, fmt.Errorf("%w: GBP and Learning are the kernel dataplane's, and that does not work here: %w", errUnfit, err)
	}
	n.log.Warn("kernel dataplane refused: taking the userspace one", "err", err)
	dp, after, uerr := n.openUserspace(c, mtu)
	if uerr != nil {
		return nil, "", nil, fmt.Errorf("neither dataplane works: kernel: %w; userspace: %w", err, uerr)
	}
	return dp, modeUserspace, after, nil
}

// errUnfit says that the dataplane which works here cannot carry the network.
var errUnfit = errors.New("network config")

func (n *network) openUserspace(c control.Network, mtu int) (dp dataplane.Dataplane, after func(), err error) {
	config := userspace.Config{
		Log:       n.log,
		Underlays: n.underlays(c, n.iface),
		VNI:       c.Backend.VNI,
		Port:      c.Backend.Port,
		MTU:       mtu,

		Offloads: n.debugOffloads,
		DF:       n.df == dfSet,
	}
	after = func() {}
	if n.several() {
		if config.Shared, after, err = n.ports.take(config, n.daemon.log); err != nil {
			return nil, nil, err
		}
	}
	d, err := userspace.Open(config)
	if err != nil {
		after()
		return nil, nil, err // not d: a nil *userspace.Dataplane is no nil interface
	}
	return d, after, nil
}
