package carrier

import "github.com/overlayd/overlayd/dataplane/udp"

// Filter says what a carrier accepts in a flood: datagrams of these networks from these sources.
type Filter = udp.Filter

// MaxFilterSources bounds the number of sources in a Filter.
const MaxFilterSources = udp.MaxFilterSources

// Shield is a carrier that can have the kernel drop a flood before it enters the queue of good datagrams.
type Shield interface {
	// SetFilter makes the carrier accept only f, and samples of the rest; nil: everything. The sources are of its family.
	// It is called repeatedly with what is wanted at that time.
	SetFilter(f *Filter) error
	// Filtered returns how many datagrams the filter has dropped.
	Filtered() uint64
}
