package uplink

import "github.com/overlayd/overlayd/encap"

// Way has the headers and the MTU for superpackets to one destination. It is immutable.
type Way struct {
	MTU   int // path MTU of the underlay, in bytes
	v6    bool
	outer encap.Outer
}
