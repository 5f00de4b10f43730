package parts

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// IsPortTaken reports whether somebody else has the UDP port of the overlay, in whichever dataplane. Any user of the host can
// bind it while no daemon runs: that is waited out, because a daemon that ended would have to be started by hand.
func IsPortTaken(err error) bool {
	return errors.Is(err, kernel.ErrPortInUse) || errors.As(err, new(*udp.PortTakenError))
}

// NameHolder adds to the error of a taken port who has it, unless that is a device: the error names it, and the socket of a device would
// look like that of a process of root that nobody sees.
func NameHolder(port uint16, err error) error {
	if !IsPortTaken(err) || isDevices(err) {
		return err
	}
	if holder := tcpport.HolderUDP(port); holder != "" {
		return fmt.Errorf("%w: %s has UDP port %d", err, holder, port)
	}
	return err
}

// isDevices reports whether a vxlan device has the port, or with it the VNI (EEXIST).
func isDevices(err error) bool {
	taken := new(udp.PortTakenError)
	return errors.As(err, &taken) && len(taken.Devices) > 0 || errors.Is(err, unix.EEXIST)
}

// Naming is an overlay whose errors name who has its port: sockets that go on with inherited queues are bound by Sync.
type Naming struct {
	*overlay.Overlay
	Port uint16 // of the overlay, UDP
}

// Sync implements controller.Overlay.
func (n Naming) Sync(ctx context.Context, w dataplane.Wanted) error {
	err := n.Overlay.Sync(ctx, w)
	if !IsPortTaken(err) {
		return err
	}
	peers, rest := dataplane.PeerErrors(err)
	err = NameHolder(n.Port, rest)
	for _, p := range peers {
		err = errors.Join(err, p)
	}
	return err
}
