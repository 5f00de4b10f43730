package userspace

import (
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// inherit decides what of Inherited to go on with, and logs why not all of it. The rest is closed.
func (c *Config) inherit(device bool) {
	if len(c.Inherited) == 0 {
		return
	}
	w := inherit.Want{
		VNI: c.VNI, Device: device, Offloads: c.Offloads.OfFiles(), Tunnel: c.Offloads.has(tunnelNeeds), Multi: c.Offloads.has(TUNVnet | TUNMultiqueue),
		Pairs: pairs, Name: func(o uint8) string { return Offloads(o).String() },
	}
	if c.Shared == nil {
		w.Locals = c.locals()
	}
	in, left, err := inherit.Take(c.Inherited, w)
	c.in = in
	if err != nil {
		c.Log.Warn("cannot take over all sockets and queues of the previous daemon: packets are lost until they are open again", "err", err)
	}
	carrier.CloseExports(left)
	if c.Unfit != nil && len(left) > 0 {
		c.Unfit(carrier.NamesOf(left))
	}
}
