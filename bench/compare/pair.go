package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/overlayd/overlayd/bench/compare/agent"
)

// underlay is how the hosts' links are set.
type underlay struct {
	name string
	// features are given to ethtool -K for both ends of the veth pair; none: the kernel's defaults.
	features []string
}

// underlays lists the underlays that are measured. By default a veth passes
// superpackets whole, which no wire does. On wire packets have MTU size, as from a
// NIC without offloads for tunnels, and the receiving kernel's GRO joins them.
func underlays() []underlay {
	return []underlay{
		{name: "default"},
		{name: "wire", features: []string{
			"tso", "off", "gso", "on", "gro", "on", "tx-udp-segmentation", "off",
			"tx-udp_tnl-segmentation", "off", "tx-udp_tnl-csum-segmentation", "off",
		}},
	}
}

// pair is two hosts with the veth pair between them.
type pair struct {
	underlay underlay
	a, b     *host
}

// newPair makes the hosts 192.0.2.1 and 192.0.2.2.
func newPair(ctx context.Context, dir string, u underlay) (*pair, error) {
	p := &pair{underlay: u}
	if err := p.build(ctx, dir); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pair) build(ctx context.Context, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if p.a, err = newHost("a", filepath.Join(dir, "a"), netip.MustParseAddr("192.0.2.1")); err != nil {
		return err
	}
	if p.b, err = newHost("b", filepath.Join(dir, "b"), netip.MustParseAddr("192.0.2.2")); err != nil {
		return err
	}
	if err := p.a.ns.AddVeth(underlayLink, p.b.ns, underlayLink, 0); err != nil {
		return err
	}
	for _, h := range p.hosts() {
		// The answer means that the agent has prepared the host.
		if err := h.check(ctx); err != nil {
			return err
		}
		if err := h.setLink(underlayLink, netip.PrefixFrom(h.underlay, 24), 0); err != nil {
			return err
		}
		if len(p.underlay.features) == 0 {
			continue
		}
		if _, err := h.run(ctx, append([]string{"ethtool", "-K", underlayLink}, p.underlay.features...)...); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) hosts() []*host { return []*host{p.a, p.b} }

// close ends both hosts.
func (p *pair) close() error {
	var errs []error
	for _, h := range p.hosts() {
		if h != nil {
			errs = append(errs, h.close())
		}
	}
	return errors.Join(errs...)
}

// reachTimeout is how long an overlay may take to carry the first packets: some make handshakes.
const reachTimeout = 15 * time.Second

// reach waits until pings come back in both directions.
func (p *pair) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("no ping came back within %s", reachTimeout))
	defer cancel()
	for _, way := range []struct{ from, to *host }{{p.a, p.b}, {p.b, p.a}} {
		last := errors.New("the agent did not say more")
		err := way.from.await(ctx, "a ping of "+way.to.overlay.String(), func() bool {
			var pinged agent.Pinged
			err := way.from.call(ctx, "Ping", agent.Ping{To: way.to.overlay, Time: time.Millisecond}, &pinged)
			switch {
			case err == nil && pinged.Lost < pinged.Sent:
				return true
			case err == nil:
				last = errors.New("the last one was lost")
			case ctx.Err() == nil:
				last = err // "no route" comes while the peer is not known
			}
			return false
		})
		if err != nil {
			return fmt.Errorf("%w (%w)", err, last)
		}
	}
	return nil
}

// logs returns the ends of all daemons' logs.
func (p *pair) logs() string {
	return strings.TrimRight(p.a.logs()+p.b.logs(), "\n")
}
