package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// isPortTaken reports whether somebody else has the UDP port of the overlay, in whichever dataplane. Any user of the host can
// bind it while no daemon runs: that is waited out, for a daemon that ends because of it has to be started by hand.
func isPortTaken(err error) bool {
	return errors.Is(err, kernel.ErrPortInUse) || errors.As(err, new(*udp.PortTakenError))
}

// nameHolder adds to the error of a taken port who has it.
func nameHolder(port uint16, err error) error {
	if !isPortTaken(err) {
		return err
	}
	if holder := tcpport.HolderUDP(port); holder != "" {
		return fmt.Errorf("%w: %s has UDP port %d", err, holder, port)
	}
	return err
}

// naming is an overlay whose errors name who has its port: sockets that go on with inherited queues are bound by Sync.
type naming struct {
	*overlay.Overlay
	port uint16
}

// Sync implements controller.Overlay.
func (n naming) Sync(ctx context.Context, w dataplane.Wanted) error {
	err := n.Overlay.Sync(ctx, w)
	if !isPortTaken(err) {
		return err
	}
	peers, rest := dataplane.PeerErrors(err)
	err = nameHolder(n.port, rest)
	for _, p := range peers {
		err = errors.Join(err, p)
	}
	return err
}
