package parts

import (
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/sharedport"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// openUserspace opens the userspace dataplane. Of several networks, those with the same port and
// underlay share the sockets.
func (l *List) openUserspace(mtu int) (*overlay.Forwarding, error) {
	l.forwardsItself()
	config := userspace.Config{
		Log:          l.Log,
		Underlays:    l.Ends,
		VNI:          l.Network.Backend.VNI,
		Port:         l.Network.Backend.Port,
		MTU:          mtu,
		Offloads:     l.Offloads,
		ExpectTunnel: l.ExpectTunnel,
		WantTunnel:   l.WantTunnel,
		DF:           l.DF,
		MinPathMTU:   l.MinPathMTU,
		SourceCheck:  l.SourceCheck,
		AnyPeerFrom:  l.AnyPeerFrom,
		Mark:         l.Mark(),
		LogAttrs:     l.LogAttrs,
		Deaf:         l.Deaf,
		Captures:     l.Captures,
	}
	config.Inherited, config.Unfit = l.Inherited.Take(config.VNI), l.Inherited.Estate.Unkeep
	giveBack, open := func() {}, userspace.Open
	var shared *sharedport.Port
	var err error
	if l.Others != nil {
		open = l.openBesideOthers
		if shared, giveBack, err = l.Others.Ports.Take(config, l.Others.Log); err != nil {
			return nil, err
		}
		config.Shared = shared.Port
	}
	d, err := open(config)
	if err != nil {
		giveBack()
		return nil, err
	}
	return overlay.NewForwarding(d, fit.Userspace, shared, giveBack), nil
}

const (
	// roomPatience bounds how long a network waits until the others of its daemon have claimed their
	// devices: they start at the same time, and each has to read its config first.
	roomPatience = time.Second
	roomLook     = 20 * time.Millisecond
)

// openBesideOthers opens the userspace dataplane of one of several networks. If vxlan devices hold the
// port, they may be those of the other networks, which then make room.
func (l *List) openBesideOthers(config userspace.Config) (*userspace.Dataplane, error) {
	if l.Mode == fit.Userspace {
		config.Replaces = l.Others.Claimed.Has
	}
	deadline := time.Now().Add(roomPatience)
	for {
		waits := l.Others.Unclaimed() // before it is tried: who claims meanwhile counts in the next try
		d, err := userspace.Open(config)
		taken := new(udp.PortTakenError)
		if !errors.As(err, &taken) || len(taken.Devices) == 0 || !waits || time.Now().After(deadline) {
			return d, err
		}
		config.Inherited = nil // that is closed
		time.Sleep(roomLook)
	}
}
