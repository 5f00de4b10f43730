package carrier

import "github.com/overlayd/overlayd/dataplane/udp"

// Filter is what a carrier takes under a flood: datagrams of these networks and sources.
type Filter = udp.Filter

// MaxFilterSources is how many sources a Filter has at most.
const MaxFilterSources = udp.MaxFilterSources

// Shield is a carrier that can have a flood dropped before it is queued with what peers send.
type Shield interface {
	// SetFilter has the carrier take nothing else than f, but for samples; nil: everything. The sources are of its family.
	// It is called again and again with what is wanted then.
	SetFilter(f *Filter) error
	// Filtered returns how many datagrams the filter has dropped.
	Filtered() uint64
}
