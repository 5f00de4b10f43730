package uplink

import "github.com/overlayd/overlayd/encap"

// Way is how superpackets get to one destination. It is immutable.
type Way struct {
	MTU   int // the longest packet of the underlay that gets there, in bytes
	v6    bool
	outer encap.Outer
}
