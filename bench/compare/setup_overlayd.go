package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/overlayd/overlayd/bench/testbed"
)

// overlayNetwork is what overlayd and flanneld cut their subnets from.
const overlayNetwork = "10.99.0.0/16"

// overlaydCandidate is two daemons, the first with the etcd of both inside. The
// tier's flags go to the hosts in userspace, or to both if both have one dataplane.
func overlaydCandidate(program, modeA, modeB string, t tier, rows ...row) candidate {
	setup := func(ctx context.Context, p *pair) error {
		return setupOverlayd(ctx, p, program, [2]string{modeA, modeB}, t.flags)
	}
	name := "overlayd-" + modeA + "-" + modeB
	note := "etcd embedded in the first host's overlayd"
	if t.name != "" {
		name += "-" + t.name
		note += "; " + strings.Join(t.flags, " ")
	}
	return candidate{name: name, needs: []string{program}, version: []string{program, "version"}, note: note, setup: setup, rows: rows}
}

func setupOverlayd(ctx context.Context, p *pair, program string, modes [2]string, flags []string) error {
	etcd := fmt.Sprintf("http://%s:2379", p.a.underlay)
	for i, h := range p.hosts() {
		args := []string{program, "--dataplane", modes[i], "--iface", underlayLink, "--subnet-file", h.path("subnet.env")}
		if i == 0 {
			args = append(args, "--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url", etcd, "--etcd-data-dir", h.path("etcd"), "--network", overlayNetwork)
		} else {
			args = append(args, "--etcd-endpoints", etcd)
		}
		if modes[0] == modes[1] || modes[i] == "userspace" {
			args = append(args, flags...)
		}
		if err := h.start(ctx, nil, args...); err != nil {
			return err
		}
		if err := h.awaitSubnet(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitSubnet waits for the subnet file, which is written when the daemon is
// ready, and takes the base address of the subnet, which the overlay device has.
func (h *host) awaitSubnet(ctx context.Context) error {
	file := h.path("subnet.env")
	if err := h.awaitFile(ctx, file); err != nil {
		return err
	}
	lease, err := testbed.ReadLease(file)
	if err != nil {
		return fmt.Errorf("host %s: %w", h.name, err)
	}
	h.overlay = lease.Gateway.Masked().Addr()
	return nil
}
