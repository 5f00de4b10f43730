package main

import (
	"context"
	"net/netip"
)

// candidate is one overlay to set up, and what is measured of it.
type candidate struct {
	name        string
	needs       []string // programs on PATH, or paths; without one of them the candidate is missing
	version     []string // command that prints the version; the first line with a digit in it counts
	versionText string   // or the version itself
	note        string   // settings that differ from the defaults, and why a figure is as it is
	setup       func(context.Context, *pair) error
	rows        []row
}

// row is one line of the result: a candidate seen from one of its hosts.
type row struct {
	name     string
	reversed bool // from host b to host a
}

// reference is the row that the ratios refer to.
const reference = "kernel vxlan"

// The overlay addresses of candidates that do not choose their own.
const (
	overlayA    = "10.99.0.1"
	overlayB    = "10.99.0.2"
	overlayBits = 24
)

// setOverlay sets the overlay addresses and returns them with their prefix length.
func (p *pair) setOverlay() [2]netip.Prefix {
	p.a.overlay, p.b.overlay = netip.MustParseAddr(overlayA), netip.MustParseAddr(overlayB)
	return [2]netip.Prefix{netip.PrefixFrom(p.a.overlay, overlayBits), netip.PrefixFrom(p.b.overlay, overlayBits)}
}

func oneRow(name string) []row { return []row{{name: name}} }

// tier is one way for overlayd's userspace dataplane to run.
type tier struct {
	name  string // "" for what overlayd chooses by itself
	flags []string
}

// suffix is what a row's name says of the tier.
func (t tier) suffix() string {
	if t.name == "" {
		return ""
	}
	return ", " + t.name
}

// tiers are the ones measured by default.
func tiers() []tier {
	return []tier{{}, {"socket", []string{"--offload=socket"}}, {"plain", []string{"--offload=plain"}}}
}

// before is the end of the name of a row of an earlier overlayd.
const before = ", before"

// earlier are the candidates of an earlier overlayd: between two hosts with one dataplane.
func earlier(overlayd string, tiers []tier) (list []candidate) {
	add := func(dataplane, name string, t tier) {
		c := overlaydCandidate(overlayd, dataplane, dataplane, t, row{name: name + before})
		c.name += "-before"
		list = append(list, c)
	}
	add("kernel", "overlayd kernel", tier{})
	for _, t := range tiers {
		add("userspace", "overlayd userspace"+t.suffix(), t)
	}
	return list
}

// candidates lists everything that is measured, in the order of the result.
func candidates(overlayd, kernel string, tiers []tier) []candidate {
	unguarded := tier{"unguarded", []string{"--source-check=off"}}
	list := []candidate{
		{name: "veth", versionText: kernel, note: "no overlay: the underlay itself", setup: setupVeth, rows: oneRow("veth, no overlay")},
		{name: "vxlan", versionText: kernel, note: "device, neighbour, FDB and route as flannel makes them", setup: setupVXLAN, rows: oneRow(reference)},
		{
			name: "flanneld", needs: []string{"flanneld"}, version: []string{"flanneld", "-version"},
			note: "vxlan backend, etcd inside this program", setup: setupFlannel, rows: oneRow("flanneld"),
		},
		overlaydCandidate(overlayd, "kernel", "kernel", tier{}, row{name: "overlayd kernel"}),
		overlaydCandidate(overlayd, "kernel", "kernel", unguarded, row{name: "overlayd kernel, no guard"}),
	}
	for _, t := range tiers {
		suffix := t.suffix()
		list = append(list,
			overlaydCandidate(overlayd, "kernel", "userspace", t,
				row{name: "overlayd kernel→userspace" + suffix}, row{name: "overlayd userspace→kernel" + suffix, reversed: true}),
			overlaydCandidate(overlayd, "userspace", "userspace", t, row{name: "overlayd userspace" + suffix}))
	}
	list = append(list, overlaydCandidate(overlayd, "userspace", "userspace", unguarded, row{name: "overlayd userspace, no guard"}))
	list = append(list,
		copierCandidate(true, row{name: "copier kernel→userspace"}, row{name: "copier userspace→kernel", reversed: true}),
		copierCandidate(false, row{name: "copier userspace"}))
	return append(list, peerCandidates()...)
}

// peerCandidates are other overlays: the newest release of two (bench/peers), and what Debian packages of the others.
func peerCandidates() []candidate {
	return []candidate{
		{
			name: "wireguard-go", needs: []string{"wireguard-go", "wg"}, version: []string{"wireguard-go", "--version"},
			note: "ChaCha20-Poly1305, MTU 1420 (all defaults)", setup: setupWireguard, rows: oneRow("wireguard-go"),
		},
		{
			name: "nebula", needs: []string{"nebula", "nebula-cert"}, version: []string{"nebula", "-version"},
			note: "AES-256-GCM (default), 2 routines, MTU 1440, socket buffers of 10 MiB", setup: setupNebula, rows: oneRow("nebula"),
		},
		{
			name: "openvpn", needs: []string{"openvpn"}, version: []string{"openvpn", "--version"},
			note: "UDP, AES-256-GCM (default), --fast-io, MTU 1440, buffers of 2 MiB; no kernel module (DCO)", setup: setupOpenVPN, rows: oneRow("openvpn"),
		},
		{
			name: "tinc", needs: []string{"tincd"}, version: []string{"tincd", "--version"},
			note: "AES-256-CBC and SHA256 (defaults), MTU 1400, no MTU probing", setup: setupTinc, rows: oneRow("tinc"),
		},
	}
}
