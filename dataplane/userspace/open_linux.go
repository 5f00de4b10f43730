package userspace

import (
	"fmt"
)

// Open makes the TUN device of the VNI, or attaches to the one that an earlier
// process left, and binds the sockets, unless they are shared and bound already.
// Before the first Sync a new device is down and without a route. A vxlan device of the same VNI
// goes on forwarding until then, and the MAC of its VTEP becomes that of this one. Errors that a caller can tell
// apart are [ErrNoTUN], [ErrNoModule], [ErrPermission], [ErrDeviceBusy], [ErrVNITaken],
// [*device.NameTakenError] and [*udp.PortTakenError].
// Run or Close releases what Open acquired.
//
// Device and sockets belong to the network namespace of the calling thread.
func Open(cfg Config) (*Dataplane, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	port := cfg.Shared
	if port == nil {
		port = newUDPPort(cfg)
	}
	port.opening.Lock()
	defer port.opening.Unlock()
	if err := port.check(cfg.VNI); err != nil {
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	// The device comes first: a vxlan device whose place it takes holds the UDP port.
	h, err := openTUN(cfg, maxHeadroom(port.descriptions()), port.isOpen())
	if err != nil {
		return nil, err
	}
	cfg.Underlays = h.device.Inherit(cfg.Underlays)
	d, err := newDataplane(cfg, h, port)
	if err != nil {
		h.undo()
		return nil, err
	}
	return d, nil
}
