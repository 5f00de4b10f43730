package dataplane

// SourceCheck is which packets of the underlay a dataplane takes for packets of a peer.
type SourceCheck string

// The values of SourceCheck, from the safest to none.
const (
	// SourceStrict: the outer source is a known VTEP, the inner source is in a subnet of that VTEP or is its
	// public address, and the inner destination is in an own subnet.
	SourceStrict SourceCheck = "strict"
	// SourceOverlay also takes, from a known VTEP, an inner source that is outside of the overlay networks.
	SourceOverlay SourceCheck = "overlay"
	// SourceInner takes any outer source in the networks that the user names, for peers behind a NAT. The inner
	// source has to be in the subnet of some peer.
	SourceInner SourceCheck = "inner"
	// SourceOff checks nothing that the dataplane does not need itself.
	SourceOff SourceCheck = "off"
)
