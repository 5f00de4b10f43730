package carrier

import "time"

// path is what is known of the way to one peer (path_linux.go). Its carrier alone uses it.
type path struct {
	looked time.Time
	sent   uint64 // bytes to the peer at the last look

	local  int // the longest packet to the peer that this host sends whole; 0: that of the device
	mtu    int // what ICMP is believed, in bytes of the underlay; 0: nothing
	tries  int // probes in a row that have to pass until it is not believed any more
	next   time.Time
	wait   time.Duration // until the next probe of a path that takes all
	again  bool          // a probe is due, even without traffic
	passed int           // probes in a row
	hints  int           // likewise: with a report that proves nothing
	hint   int           // that of the probe that is out, in bytes; 0: none
	below  int           // the last report below the floor

	trial int // of the probe that is out: one more than its index; 0: none
	proof int // see udp.Trial.Report
	until time.Time
}
