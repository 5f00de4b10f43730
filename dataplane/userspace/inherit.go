package userspace

import (
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// inherit decides whether to go on with Inherited, and logs why not. Then all of it is closed.
func (c *Config) inherit(device bool) {
	if len(c.Inherited) == 0 {
		return
	}
	w := inherit.Want{
		VNI: c.VNI, Device: device, Offloads: c.Offloads.OfFiles(), Multi: c.Offloads.has(TUNVnet | TUNMultiqueue),
		Pairs: pairs, Name: func(o uint8) string { return Offloads(o).String() },
	}
	if c.Shared == nil {
		w.Locals = c.locals()
	}
	in, err := inherit.Take(c.Inherited, w)
	if err == nil {
		c.in = in
		return
	}
	c.Log.Warn("cannot go on with the sockets and queues of the process before: packets are lost until all is open again", "err", err)
	carrier.CloseExports(c.Inherited)
	if c.Unfit != nil {
		c.Unfit()
	}
}
