package main

import (
	"context"
	"errors"
	"net/netip"
	"strconv"

	"github.com/overlayd/overlayd/bench/compare/copier"
	"github.com/overlayd/overlayd/encap"
)

// copierCommand as first argument makes this program a copier:
// compare copier <device> <address> <MAC> <address of the peer> <its MAC> <whether it joins segments> <whether it cuts superpackets>.
const copierCommand = "copier"

// copierCandidate is a copier on both hosts, or the kernel's vxlan on the first.
func copierCandidate(kernel bool, rows ...row) candidate {
	name := "copier-copier"
	if kernel {
		name = "vxlan-copier"
	}
	return candidate{
		name: name, versionText: "of this tree", note: "copies between TUN device and underlay, checks nothing: what any userspace dataplane can reach",
		setup: func(ctx context.Context, p *pair) error { return setupCopier(ctx, p, kernel) }, rows: rows,
	}
}

func setupCopier(ctx context.Context, p *pair, kernel bool) error {
	wire := p.underlay.features != nil
	for i, h := range p.hosts() {
		if kernel && i == 0 {
			if err := p.joinVXLAN(i); err != nil {
				return err
			}
			continue
		}
		h.overlay = vxlanSubnets[i].Addr()
		peer := p.hosts()[1-i]
		if err := h.start(ctx, nil, "/proc/self/exe", copierCommand, flannelLink, h.underlay.String(), vxlanMACs[i].String(),
			peer.underlay.String(), vxlanMACs[1-i].String(), strconv.FormatBool(wire), strconv.FormatBool(wire && !kernel)); err != nil {
			return err
		}
		if err := h.awaitLink(ctx, flannelLink); err != nil {
			return err
		}
		if err := h.setLink(flannelLink, netip.PrefixFrom(h.overlay, 32), copier.MTU); err != nil {
			return err
		}
		if err := h.addRoute(flannelLink, vxlanSubnets[1-i], netip.Addr{}); err != nil {
			return err
		}
	}
	return nil
}

// runCopier copies until it is killed.
func runCopier(args []string) error {
	cfg := copier.Config{Device: args[0], VNI: 1}
	var errs [6]error
	cfg.Local, errs[0] = netip.ParseAddr(args[1])
	cfg.LocalMAC, errs[1] = encap.ParseMAC(args[2])
	cfg.Peer, errs[2] = netip.ParseAddr(args[3])
	cfg.PeerMAC, errs[3] = encap.ParseMAC(args[4])
	cfg.Join, errs[4] = strconv.ParseBool(args[5])
	cfg.Cut, errs[5] = strconv.ParseBool(args[6])
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	return copier.Run(cfg)
}
