package dataplane

import (
	"errors"
	"fmt"
)

// What keeps a peer from a direct route. If nothing else leads to the peer, it cannot be reached.
var (
	ErrOffLink = WithFix(errors.New("it is on no link of this host: its packets would have to be encapsulated, which the network does not do"),
		"put the hosts on one link, or have packets encapsulated: Backend.Type vxlan in the network config")
	ErrRouteTaken = WithFix(errors.New("somebody else has a route to its subnet, or the kernel refuses one"),
		"remove the route that is in the way: overlayd doctor names it")
)

// PeerError means that a dataplane could not program one peer. It never concerns another peer.
type PeerError struct {
	Peer Peer
	Err  error
}

// Error implements error.
func (e *PeerError) Error() string {
	return fmt.Sprintf("peer %s %v: %v", e.Peer.Addr, e.Peer.Subnets, e.Err)
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *PeerError) Unwrap() error { return e.Err }

// PeerErrors takes an error of Dataplane.Sync apart, through every
// errors.Join and wrapping: what concerns one peer each, and the rest. Only the
// rest means that the device is not up.
func PeerErrors(err error) (peers []*PeerError, rest error) {
	switch e := err.(type) {
	case nil:
		return nil, nil
	case *PeerError:
		return []*PeerError{e}, nil
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			p, r := PeerErrors(part)
			peers, rest = append(peers, p...), errors.Join(rest, r)
		}
		return peers, rest
	case interface{ Unwrap() error }:
		if p, r := PeerErrors(e.Unwrap()); len(p) > 0 && r == nil {
			return p, nil
		}
	}
	return nil, err
}
