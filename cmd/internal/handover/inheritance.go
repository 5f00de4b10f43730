package handover

import (
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// Inheritance is what the userspace dataplane of one network can go on with: files of this daemon's last one, and of the estate.
// Its methods are called from one goroutine.
type Inheritance struct {
	Estate  *Estate
	Several bool // the estate is that of several networks, so that only the queues are one network's: the sockets are the port's

	own []carrier.Export
}

// Leave makes exports all that the last dataplane of this daemon has left.
func (i *Inheritance) Leave(exports []carrier.Export) {
	carrier.CloseExports(i.own)
	i.own = exports
}

// Has reports whether a dataplane could go on with anything.
func (i *Inheritance) Has() bool { return i.Estate.Has(inherit.IsTraffic) || len(i.own) > 0 }

// Take returns what the dataplane of a VNI may go on with. It is the caller's.
func (i *Inheritance) Take(vni uint32) []carrier.Export {
	own := i.own
	i.own = nil
	if i.Several {
		return append(own, i.Estate.TakeNamed(inherit.QueueName(vni))...)
	}
	return append(own, i.Estate.Take(inherit.IsTraffic)...)
}

// Drop closes all of it. The estate logs why.
func (i *Inheritance) Drop(why string) {
	i.Estate.Drop(why, inherit.IsTraffic)
	i.Leave(nil)
}
