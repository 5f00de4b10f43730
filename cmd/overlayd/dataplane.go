package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// openDataplane opens the dataplane that --dataplane asks for and returns it
// with its mode. In auto mode the kernel's is opened for real, device and all;
// whatever refuses that is the reason for taking the userspace one.
func (d *daemon) openDataplane(n control.Network, mtu int) (dataplane.Dataplane, string, error) {
	if d.dataplane == modeUserspace {
		dp, err := d.openUserspace(n, mtu)
		return dp, modeUserspace, err
	}
	dp, err := kernel.Open(kernel.Config{
		Log:      d.log,
		Link:     d.iface.Index,
		Local:    d.iface.IPv4.Local,
		Public:   d.iface.IPv4.Public,
		VNI:      n.Backend.VNI,
		Port:     n.Backend.Port,
		MTU:      mtu,
		GBP:      n.Backend.GBP,
		Learning: n.Backend.Learning,
	})
	if err == nil {
		return dp, modeKernel, nil
	}
	if d.dataplane == modeKernel {
		return nil, "", err
	}
	if n.Backend.GBP || n.Backend.Learning {
		return nil, "", fmt.Errorf("%w: GBP and Learning are the kernel dataplane's, and that does not work here: %w", errUnfit, err)
	}
	d.log.Warn("kernel dataplane refused: taking the userspace one", "err", err)
	user, uerr := d.openUserspace(n, mtu)
	if uerr != nil {
		return nil, "", fmt.Errorf("neither dataplane works: kernel: %w; userspace: %w", err, uerr)
	}
	return user, modeUserspace, nil
}

// errUnfit says that the dataplane which works here cannot carry the network.
var errUnfit = errors.New("network config")

func (d *daemon) openUserspace(n control.Network, mtu int) (dataplane.Dataplane, error) {
	dp, err := userspace.Open(userspace.Config{
		Log:       d.log,
		Underlays: []dataplane.Underlay{{Link: d.iface.Index, Local: d.iface.IPv4.Local, Public: d.iface.IPv4.Public}},
		VNI:       n.Backend.VNI,
		Port:      n.Backend.Port,
		MTU:       mtu,

		Offloads: d.debugOffloads,
		DF:       d.df == dfSet,
	})
	if err != nil {
		return nil, err // not dp: a nil *userspace.Dataplane is no nil interface
	}
	return dp, nil
}

// ipForward is a path below /proc/sys.
const ipForward = "net/ipv4/ip_forward"

// enableForwarding lets pods behind this host be reached. A host that carries
// its own traffic only works without, so a refusal is said and not fatal.
func enableForwarding(log *slog.Logger) {
	if err := rtnl.SetSysctl(ipForward, "1"); err != nil {
		log.Error("IPv4 forwarding is off and cannot be turned on: only this host itself is reachable over the overlay, nothing behind it",
			"err", err, "fix", "sysctl -w net.ipv4.ip_forward=1 on the host, or docker run --sysctl net.ipv4.ip_forward=1")
	}
}
