package node

import (
	"errors"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// claimedDevices are the VNIs whose devices the networks of a daemon have claimed. In userspace mode
// the kernel's vxlan devices of all of them are in the way of the UDP port that they share.
type claimedDevices struct {
	mu   sync.Mutex
	vnis map[uint32]bool
}

func (c *claimedDevices) add(vni uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vnis == nil {
		c.vnis = map[uint32]bool{}
	}
	c.vnis[vni] = true
}

func (c *claimedDevices) remove(vni uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vnis, vni)
}

func (c *claimedDevices) has(vni uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vnis[vni]
}

const (
	// roomPatience bounds how long a network waits until the others of its daemon have claimed their
	// devices: they start at the same time, and each has to read its config first.
	roomPatience = time.Second
	roomLook     = 20 * time.Millisecond
)

// openBesideOthers opens the userspace dataplane of one of several networks. If vxlan devices hold the
// port, they may be those of the other networks, which then make room.
func (n *Network) openBesideOthers(config userspace.Config) (*userspace.Dataplane, error) {
	if n.cfg.Mode == Userspace {
		config.Replaces = n.daemon.claimed.has
	}
	deadline := time.Now().Add(roomPatience)
	for {
		waits := n.daemon.expects.unclaimed() // before it is tried: who claims meanwhile counts in the next try
		d, err := userspace.Open(config)
		taken := new(udp.PortTakenError)
		if !errors.As(err, &taken) || len(taken.Devices) == 0 || !waits || time.Now().After(deadline) {
			return d, err
		}
		time.Sleep(roomLook)
	}
}
