package carrier

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/uplink"
	"github.com/overlayd/overlayd/encap"
)

// tunnelCarrier sends superpackets whole, inside of the tunnel, by an uplink, and all other packets by UDP sockets. It receives by
// these sockets only: a socket takes superpackets from peers on the same machine whole, too.
type tunnelCarrier struct {
	*udpCarrier
	uplink *uplink.Uplink
}

// Tunnel returns the opener of a carrier that hands superpackets to the kernel inside of the tunnel, if the kernel takes them (Linux
// 6.17). If it does not, the opener logs why and opens a carrier that has only UDP sockets.
func Tunnel(cfg UDPConfig) Opener {
	o := UDP(cfg)
	o.Description.Headroom = uplink.Headroom + encap.HeaderLen
	with := func(open func(int) (Carrier, error)) func(int) (Carrier, error) {
		return func(workers int) (Carrier, error) {
			c, err := open(workers)
			if err != nil {
				cfg.InheritedUplink.Close() // nil has nothing to close
				return nil, err
			}
			return withUplink(c.(*udpCarrier), cfg), nil
		}
	}
	o.Open, o.OpenBeside = with(o.Open), with(o.OpenBeside)
	return o
}

// withUplink adds an uplink to a carrier of UDP sockets. If the uplink cannot be opened, it returns the carrier unchanged.
func withUplink(c *udpCarrier, cfg UDPConfig) Carrier {
	t := &tunnelCarrier{udpCarrier: c}
	var err error
	t.uplink, err = uplink.Open(uplink.Config{Log: cfg.Log, Local: cfg.Local.Addr(), Port: cfg.Local.Port(), TTL: udp.OuterTTL, DF: cfg.DF, Mark: c.out.mark, Always: cfg.ExpectTunnel, Inherited: cfg.InheritedUplink})
	if err != nil {
		level, text := slog.LevelInfo, "no tunnel offload here: superpackets go by UDP sockets, in segments"
		if cfg.ExpectTunnel {
			level = slog.LevelWarn
		}
		cfg.Log.Log(context.Background(), level, text, "err", err, "fix", dataplane.FixOr(err, "Linux 6.17 with nft_fwd_netdev, CAP_NET_ADMIN and /dev/net/tun, or --offload=socket"))
		return c
	}
	return t
}

// NewSender implements Carrier.
func (t *tunnelCarrier) NewSender() Sender {
	room := MaxPacket - encap.Overhead(t.cfg.Local.Addr())
	return &tunnelSender{batcher: t.udpCarrier.NewSender().(*batcher), writer: t.uplink.NewWriter(), ports: &t.out.ports, room: room, id: uint16(rand.Uint32())}
}

// Refresh implements Carrier. It also refreshes the ways by the uplink.
func (t *tunnelCarrier) Refresh(entries []Entry, mtu int) (soon bool) {
	var list []uplink.Destination
	for i := range entries {
		p := entries[i].Peer
		if have := p.way.Load(); FamilyOf(p.Addr) == t.family && (have != nil || p.wants.Load()) {
			list = append(list, uplink.Destination{Addr: p.Addr, Sockets: p.Sockets(), Set: p.way.Store, Have: have})
		}
	}
	t.uplink.Refresh(list)
	return t.udpCarrier.Refresh(entries, mtu)
}

// Objects implements Keeper.
func (t *tunnelCarrier) Objects() ([]dataplane.ObjectStatus, []dataplane.Change) {
	return t.uplink.Objects()
}

// Export implements Exporter. It also exports the uplink: if a process dies with the last file of that device, it ends 25 ms later.
func (t *tunnelCarrier) Export() ([]Export, error) {
	exports, err := t.udpCarrier.Export()
	if f := t.uplink.File(); err == nil && f != nil {
		if e, err := ExportFile(f, UplinkName(t.cfg.Local), 0); err == nil { // else it has been closed: nothing waits in it
			exports = append(exports, e)
		}
	}
	return exports, err
}

// Close implements Carrier.
func (t *tunnelCarrier) Close() {
	t.uplink.Close()
	t.udpCarrier.Close()
}

// Describe implements Describer.
func (t *tunnelCarrier) Describe() []any {
	return append(t.udpCarrier.Describe(), "tunnel", t.out.isSpread() && t.uplink.InUse() == nil)
}
