package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/bench/compare/agent"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// attacked is an overlay under attack. It is dual-stack, has two hosts, and shares the link with a third host, which is not a
// peer.
type attacked struct {
	name   string
	mode   string // dataplane of both hosts
	flags  []string
	floods bool // it is flooded, too
}

func attackedOverlays() []attacked {
	return []attacked{
		{name: "overlayd kernel", mode: "kernel", floods: true},
		{name: "overlayd userspace", mode: "userspace", floods: true},
		{name: "overlayd userspace, --df=set", mode: "userspace", flags: []string{"--df=set"}},
	}
}

// attack is one kind: what it may cost is measured beside what it does not touch.
type attack struct {
	name  string // of the check
	floor float64
	pair  func(context.Context, *stage) (attacked, beside float64, err error)
}

// The least ratios: of throughput within two seconds after forged ICMP to that before, and of throughput under a flood
// to that under the same flood to a closed port.
const icmpFloor, floodFloor = 0.9, 0.9

// attacks are all kinds that an overlay meets.
func (a attacked) attacks() (all []attack) {
	for i, family := range []string{"IPv4", "IPv6"} {
		all = append(all, attack{"attack/" + a.name + ": after forged ICMP over " + family, icmpFloor,
			func(ctx context.Context, s *stage) (float64, float64, error) { return s.forgedICMP(ctx, i) }})
	}
	if !a.floods {
		return all
	}
	for _, kind := range floodKinds() {
		all = append(all, attack{"attack/" + a.name + ": flood, " + kind.name, floodFloor,
			func(ctx context.Context, s *stage) (float64, float64, error) { return s.flooded(ctx, kind) }})
	}
	return all
}

// wantsAttacks reports whether --only matches one.
func (r *run) wantsAttacks() bool {
	return slices.ContainsFunc(attackedOverlays(), func(a attacked) bool { return len(r.selectAttacks(a)) > 0 })
}

// selectAttacks returns those that --only matches.
func (r *run) selectAttacks(a attacked) (wanted []attack) {
	for _, k := range a.attacks() {
		if r.only == nil || r.only.MatchString(k.name) {
			wanted = append(wanted, k)
		}
	}
	return wanted
}

const (
	attackTime   = 800 * time.Millisecond // of one measurement
	floodTime    = 500 * time.Millisecond // of each of four under a flood
	floodAhead   = 200 * time.Millisecond // a flood begins before the measurement
	attackMargin = 200 * time.Millisecond // the sender goes on behind it
)

// attackAll attacks what --only matches. Each round has overlays of its own: what an attack leaves behind must not be
// taken for how it was before.
func (r *run) attackAll(ctx context.Context) (checks []check, err error) {
	for round := range r.rounds {
		n := 0
		for _, a := range attackedOverlays() {
			wanted := r.selectAttacks(a)
			if round == 0 {
				for _, k := range wanted {
					checks = append(checks, check{Name: k.name, Floor: k.floor})
				}
			}
			if err := r.attackOne(ctx, round, a, wanted, checks[n:n+len(wanted)]); err != nil {
				return nil, err
			}
			n += len(wanted)
		}
	}
	for i := range checks {
		checks[i].judge()
	}
	return checks, nil
}

// attackOne is one round of one overlay. Only the end of ctx is an error: what fails is noted in the checks.
func (r *run) attackOne(ctx context.Context, round int, a attacked, attacks []attack, checks []check) error {
	if len(attacks) == 0 {
		return nil
	}
	s, err := r.newStage(ctx, round, a)
	if s != nil {
		defer s.close()
	}
	for i, k := range attacks {
		var got, beside float64
		if err == nil {
			got, beside, err = k.pair(ctx, s)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			checks[i].Errors = append(checks[i].Errors, fmt.Sprintf("round %d: %v", round+1, err))
			r.say("%s: %v", k.name, err)
			if s != nil {
				err = nil // of this attack
			}
			continue
		}
		checks[i].add(got, beside)
		r.say("%d/%d %-60s %5.2f beside %5.2f Gbit/s", round+1, r.rounds, k.name, got, beside)
	}
	return nil
}

// stage is where an attack takes place. The link is a bridge of the attacker's, so that nothing else is between it and
// the hosts.
type stage struct {
	*pair
	x       *host
	under   [2][2]netip.Addr // of both hosts, by family
	overlay [2][2]netip.Addr
	mtu     int
}

// newStage makes the hosts and their overlay.
func (r *run) newStage(ctx context.Context, round int, a attacked) (_ *stage, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, setupTimeout, fmt.Errorf("not up after %s", setupTimeout))
	defer cancel()
	s := &stage{pair: new(pair)}
	name := strings.NewReplacer(" ", "-", ",", "").Replace(a.name)
	if err = s.build(ctx, filepath.Join(r.dir, fmt.Sprintf("attack-%d-%s", round, name))); err == nil {
		if err = s.start(ctx, r.overlayd, a); err == nil {
			return s, nil
		}
		if logs := s.logs(); logs != "" {
			err = fmt.Errorf("%w\n%s", err, logs)
		}
	}
	return nil, errors.Join(err, s.close())
}

// start starts the overlay and waits until it carries both families.
func (s *stage) start(ctx context.Context, program string, a attacked) error {
	flags := append([]string{"--network=10.99.0.0/16,fd42:99::/48"}, a.flags...)
	if err := setupOverlayd(ctx, s.pair, program, [2]string{a.mode, a.mode}, flags); err != nil {
		return err
	}
	for i, h := range s.hosts() {
		f, err := subnetfile.Load(h.path("subnet.env"))
		if err != nil {
			return fmt.Errorf("host %s: %w", h.name, err)
		}
		if len(f.Subnets()) != 2 || f.MTU == 0 {
			return fmt.Errorf("host %s: its subnet file lacks a subnet of one family, or the MTU", h.name)
		}
		s.overlay[i], s.mtu = [2]netip.Addr{f.Subnet.Addr(), f.IPv6Subnet.Addr()}, f.MTU
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.a.await(ctx, "TCP over IPv6", func() bool {
		_, err := s.goodput(ctx, 1, 10*time.Millisecond)
		return err == nil
	})
}

func (s *stage) close() error {
	err := s.pair.close()
	if s.x != nil {
		err = errors.Join(err, s.x.close())
	}
	return err
}

// goodput returns what one TCP stream from host a brings host b, in Gbit/s.
func (s *stage) goodput(ctx context.Context, family int, d time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+callPatience, errors.New("the stream stalled"))
	defer cancel()
	to := netip.AddrPortFrom(s.overlay[1][family], tcpPort)
	var got agent.Received
	var group errgroup.Group
	group.Go(func() error { return s.b.call(ctx, "Drain", agent.Drain{At: to, Time: d}, &got) })
	group.Go(func() error {
		return s.a.call(ctx, "Pour", agent.Pour{To: to, Time: d + attackMargin}, new(agent.Nothing))
	})
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return got.Gbit() / got.Elapsed.Seconds(), nil
}

// forgedICMP measures before and after the third host has told host a that the path to b is narrow.
func (s *stage) forgedICMP(ctx context.Context, family int) (after, before float64, err error) {
	if before, err = s.goodput(ctx, family, attackTime); err != nil {
		return 0, 0, err
	}
	f := agent.ForgeICMP{To: s.under[0][family], About: s.under[1][family]}
	if err := s.a.call(ctx, "UDPPorts", agent.Nothing{}, &f.Ports); err != nil {
		return 0, 0, err
	}
	if err := s.x.call(ctx, "ForgeICMP", f, new(int)); err != nil {
		return 0, 0, err
	}
	if after, err = s.goodput(ctx, family, attackTime); err != nil {
		return 0, 0, err
	}
	return after, before, s.full(ctx, family)
}

// full has a packet of the overlay's MTU, which nobody may fragment, cross.
func (s *stage) full(ctx context.Context, family int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callPatience, fmt.Errorf("no packet of %d bytes with DF arrives", s.mtu))
	defer cancel()
	at := netip.AddrPortFrom(s.overlay[1][family], udpPort)
	var group errgroup.Group
	group.Go(func() error { return s.b.call(ctx, "AwaitFull", agent.Full{At: at, Length: s.mtu}, new(agent.Nothing)) })
	group.Go(func() error { return s.a.call(ctx, "SendFull", agent.Full{At: at, Length: s.mtu}, new(agent.Nothing)) })
	return group.Wait()
}

// flooded measures while the third host floods the VXLAN port of host b, and while it does the same to a closed port: in turns, because
// one stream differs much from the next.
func (s *stage) flooded(ctx context.Context, kind floodKind) (open, closed float64, err error) {
	turns := []struct {
		port   uint16
		figure *float64
	}{{vxlanPort + 1, &closed}, {vxlanPort, &open}, {vxlanPort, &open}, {vxlanPort + 1, &closed}}
	for _, to := range turns {
		got, err := s.besideFlood(ctx, kind, to.port)
		if err != nil {
			return 0, 0, err
		}
		*to.figure += got / 2
	}
	return open, closed, nil
}

// besideFlood returns what one TCP stream brings while the third host floods a port of host b.
func (s *stage) besideFlood(ctx context.Context, kind floodKind, port uint16) (got float64, err error) {
	f := kind.flood(s)
	f.To, f.Time = netip.AddrPortFrom(s.under[1][0], port), floodTime+floodAhead+2*attackMargin
	var group errgroup.Group
	group.Go(func() error { return s.x.call(ctx, "Flood", f, new(int64)) })
	group.Go(func() (err error) {
		select {
		case <-time.After(floodAhead):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		got, err = s.goodput(ctx, 0, floodTime)
		return err
	})
	err = group.Wait()
	return got, err
}
