package encap

// RunLimit bounds a run, which is what goes to the wire by one send with
// UDP_SEGMENT: datagrams of one size to one address, the last maybe shorter.
type RunLimit struct {
	Datagrams int // in one run: UDP_MAX_SEGMENTS of the kernel
	Bytes     int // of UDP payload in one run
}

// The limits of Linux (checked on kernel 6.18 against sendmsg).
const (
	// MaxRunDatagrams is the number of datagrams that every kernel with UDP_SEGMENT
	// takes at once. Since 6.9 it is MaxRunDatagramsNew.
	MaxRunDatagrams    = 64
	MaxRunDatagramsNew = 128
	// MaxRunBytes is what fits one IPv4 packet of 65535 bytes. IPv6 has room for 20
	// more, which nobody needs.
	MaxRunBytes = 65535 - outerIPv4Len - outerUDPLen
)

// RunLen returns how many datagrams the next run should have if left bytes are
// to be sent as datagrams of size bytes, the last of which may be shorter. It
// takes as few runs as the limit allows and makes them as even as they can
// be: 46 datagrams of which 44 fit go as 23 and 23, because 44 and 2 cost the
// receiver a second pass for nearly nothing. It is 0 if nothing is left,
// and 1 if not even one fits, which the kernel then refuses.
func RunLen(left, size int, limit RunLimit) int {
	if left <= 0 || size <= 0 {
		return 0
	}
	n := (left + size - 1) / size
	if left <= limit.Bytes && n <= limit.Datagrams {
		return n
	}
	most := max(1, min(limit.Datagrams, limit.Bytes/size))
	runs := (n + most - 1) / most
	return (n + runs - 1) / runs
}
