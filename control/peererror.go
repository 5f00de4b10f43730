package control

import (
	"errors"

	"github.com/overlayd/overlayd/dataplane"
)

// splitPeerErrors takes an error of Dataplane.Sync apart, through every
// errors.Join and wrapping: what concerns one peer each, and the rest. Only the
// rest means that the device is not up.
func splitPeerErrors(err error) (peers []*dataplane.PeerError, rest error) {
	switch e := err.(type) {
	case nil:
		return nil, nil
	case *dataplane.PeerError:
		return []*dataplane.PeerError{e}, nil
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			p, r := splitPeerErrors(part)
			peers, rest = append(peers, p...), errors.Join(rest, r)
		}
		return peers, rest
	case interface{ Unwrap() error }:
		if p, r := splitPeerErrors(e.Unwrap()); len(p) > 0 && r == nil {
			return p, nil
		}
	}
	return nil, err
}
