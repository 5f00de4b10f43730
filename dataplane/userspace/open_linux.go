package userspace

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// Open makes the TUN device of the VNI, or attaches to the one that an earlier
// process left, and binds the sockets, unless they are shared and bound already.
// Before the first Sync a new device is down and without a route. A vxlan device of the same VNI
// goes on forwarding until then, and its MAC becomes that of the new VTEP; the sockets are bound by that
// Sync. Errors that a caller can tell
// apart are [ErrNoTUN], [ErrNoModule], [ErrPermission], [ErrDeviceBusy], [ErrVNITaken],
// [*device.NameTakenError] and [*udp.PortTakenError].
// Run or Close releases what Open acquired.
//
// Device and sockets belong to the network namespace of the calling thread.
func Open(cfg Config) (*Dataplane, error) {
	if err := cfg.check(); err != nil {
		carrier.CloseExports(cfg.Inherited)
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	cfg.inherit(true)
	port := cfg.Shared
	if port == nil {
		port = newUDPPort(cfg)
	}
	port.opening.Lock()
	defer port.opening.Unlock()
	if err := port.check(cfg.VNI); err != nil {
		cfg.in.Close()
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	// The device comes first: a vxlan device whose place it takes holds the UDP port.
	h, err := openTUN(cfg, maxHeadroom(port.descriptions()), port.unbound())
	if err != nil {
		cfg.in.Close()
		return nil, err
	}
	cfg.Underlays = h.device.Inherit(cfg.Underlays)
	d, err := newDataplane(cfg, h, port)
	if err != nil {
		h.undo()
		cfg.in.Close()
		return nil, err
	}
	return d, nil
}

// NewPort makes a Port of UDP sockets for networks whose Config has the same Port and the same Local
// addresses. It uses Log, Underlays, Port, Offloads, ExpectTunnel, WantTunnel, DF, MinPathMTU, Mark and what is inherited of cfg; an error
// names the field. Run has to be called, once: it releases what the networks made it acquire.
func NewPort(cfg Config) (*Port, error) {
	if err := cfg.checkPort(); err != nil {
		carrier.CloseExports(cfg.Inherited)
		return nil, fmt.Errorf("open UDP port: %w", err)
	}
	cfg.inherit(false)
	return newUDPPort(cfg), nil
}

// tunnelNeeds are the offloads without which there is no uplink.
const tunnelNeeds = TUNVnet | TUNGSO | Tunnel

// newUDPPort makes a Port with a carrier for each underlay: of UDP sockets, and of an uplink beside them if that is wanted and there.
func newUDPPort(cfg Config) *Port {
	var openers []carrier.Opener
	open := carrier.UDP
	if lacks := tunnelNeeds &^ cfg.Offloads; lacks == 0 {
		open = carrier.Tunnel
	} else if cfg.WantTunnel { // as if the kernel had none
		level := slog.LevelInfo
		if cfg.ExpectTunnel {
			level = slog.LevelWarn
		}
		cfg.Log.Log(context.Background(), level, "no tunnel offload here: superpackets go by UDP sockets, in segments",
			"err", "turned off: "+lacks.String(), "fix", "leave out --debug-offloads, or say --offload=socket")
	}
	for _, local := range cfg.locals() {
		openers = append(openers, open(carrier.UDPConfig{
			Log: cfg.Log, Local: local, Segment: cfg.Offloads.has(UDPSegment), GRO: cfg.Offloads.has(UDPGRO), DF: cfg.DF, Mark: cfg.Mark, MinPathMTU: cfg.MinPathMTU, ExpectTunnel: cfg.ExpectTunnel,
			Inherited: cfg.in.Of(inherit.SocketName(local)), InheritedUplink: cfg.in.Uplink(local),
		}))
	}
	return newPort(cfg, openers...)
}
