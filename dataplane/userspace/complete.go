package userspace

import (
	"encoding/binary"

	"github.com/overlayd/overlayd/encap"
)

// complete puts the checksum of l4, whose field holds its pseudo-header sum, into
// that field. 0 is written as its equal 0xffff: for UDP it means no checksum.
func complete(l4 []byte, field int) {
	sum := ^encap.Sum(l4, 0)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[field:], sum)
}
