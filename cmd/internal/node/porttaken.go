package node

import (
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/cmd/internal/tcpport"
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
