package uplink

import (
	"sync/atomic"

	"github.com/overlayd/overlayd/encap"
)

// Way has the headers and the MTU for superpackets to one destination. It is immutable, but it may end.
type Way struct {
	MTU   int // path MTU of the underlay, in bytes
	v6    bool
	outer encap.Outer
	// device is the one whose table has the next hop; nil: the way has ended. Those that still have it learn so at their next Refresh.
	device atomic.Pointer[device]
}
