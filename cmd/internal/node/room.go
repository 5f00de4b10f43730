package node

import (
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

const (
	// roomPatience bounds how long a network waits until the others of its daemon have claimed their
	// devices: they start at the same time, and each has to read its config first.
	roomPatience = time.Second
	roomLook     = 20 * time.Millisecond
)

// openBesideOthers opens the userspace dataplane of one of several networks. If vxlan devices hold the
// port, they may be those of the other networks, which then make room.
func (n *Network) openBesideOthers(config userspace.Config) (*userspace.Dataplane, error) {
	if n.cfg.Mode == fit.Userspace {
		config.Replaces = n.daemon.claimed.Has
	}
	deadline := time.Now().Add(roomPatience)
	for {
		waits := n.daemon.expects.unclaimed() // before it is tried: who claims meanwhile counts in the next try
		d, err := userspace.Open(config)
		taken := new(udp.PortTakenError)
		if !errors.As(err, &taken) || len(taken.Devices) == 0 || !waits || time.Now().After(deadline) {
			return d, err
		}
		config.Inherited = nil // that is closed
		time.Sleep(roomLook)
	}
}
