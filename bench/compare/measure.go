package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/bench/compare/agent"
	"github.com/overlayd/overlayd/bench/testbed"
)

const (
	tcpPort, udpPort = 5201, 5202

	idleGap = 5 * time.Millisecond
	loadGap = 2 * time.Millisecond
	// callPatience is what a call may take beyond its traffic.
	callPatience = 3 * testbed.StallTimeout
	// drain is left to the queues of daemons and kernel after a UDP flood.
	drain = 50 * time.Millisecond
)

// figures are the metrics of one row in one round, by key.
type figures map[string]float64

// way is a pair seen from the host that sends.
type way struct {
	from, to *host
}

func (p *pair) way(r row) way {
	if r.reversed {
		return way{p.b, p.a}
	}
	return way{p.a, p.b}
}

// measure takes every figure once. It goes on after one that fails; the others are valid.
func (w way) measure(ctx context.Context, s schedule) (figures, error) {
	f := make(figures)
	var errs []error
	for _, step := range []struct {
		name string
		take func() error
	}{
		{"TCP 1", func() error { return w.tcp1(ctx, s.tcp1, f) }},
		{"TCP 8", func() error { return w.tcp8(ctx, s.tcp8, f) }},
		{"flood RTT", func() error { return w.flood(ctx, s.flood, f) }},
		{"idle RTT", func() error { return w.idle(ctx, s.idle, f) }},
		{"RTT under TCP", func() error { return w.load(ctx, s, f) }},
		{"UDP 64", func() error { return w.udp(ctx, 64, s, f, "udp64_kpps") }},
		{"UDP 1400", func() error { return w.udp(ctx, 1400, s, f, "udp1400_kpps") }},
	} {
		if err := step.take(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.name, err))
		}
		if ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
	}
	return f, errors.Join(errs...)
}

// tcp moves TCP and returns what arrived.
func (w way) tcp(ctx context.Context, streams int, d time.Duration) (got agent.Received, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+callPatience, errors.New("the streams stalled"))
	defer cancel()
	var group errgroup.Group // both ends time out by themselves, and are to be done before the next step
	group.Go(func() error {
		return w.to.call(ctx, "ReceiveTCP", agent.ReceiveTCP{Port: tcpPort, Streams: streams}, &got)
	})
	group.Go(func() error {
		to := netip.AddrPortFrom(w.to.overlay, tcpPort)
		return w.from.call(ctx, "SendTCP", agent.SendTCP{To: to, Streams: streams, Time: d}, new(agent.Nothing))
	})
	if err := group.Wait(); err != nil {
		return got, err
	}
	if got.Elapsed <= 0 || got.Bytes == 0 {
		return got, errors.New("nothing arrived")
	}
	return got, nil
}

func (w way) tcp1(ctx context.Context, d time.Duration, f figures) error {
	pids := []int{w.from.agent.Process.Pid, w.to.agent.Process.Pid}
	before, err := readCPU(pids...)
	if err != nil {
		return err
	}
	got, err := w.tcp(ctx, 1, d)
	if err != nil {
		return err
	}
	after, err := readCPU(pids...)
	if err != nil {
		return err
	}
	used := after.sub(before)
	f["tcp1_gbit_s"] = got.Gbit() / got.Elapsed.Seconds()
	f["cpu_processes_s_gbit"] = used.processes / got.Gbit()
	f["cpu_machine_s_gbit"] = used.machine / got.Gbit()
	return nil
}

func (w way) tcp8(ctx context.Context, d time.Duration, f figures) error {
	got, err := w.tcp(ctx, 8, d)
	if err == nil {
		f["tcp8_gbit_s"] = got.Gbit() / got.Elapsed.Seconds()
	}
	return err
}

// udp sends a little longer than the receiver counts, so that it counts a flood
// from its first packet on, and never its end.
func (w way) udp(ctx context.Context, size int, s schedule, f figures, key string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.udp+callPatience, errors.New("no end of the packets"))
	defer cancel()
	if err := w.to.call(ctx, "ListenUDP", uint16(udpPort), new(agent.Nothing)); err != nil {
		return err
	}
	var got agent.Received
	var group errgroup.Group
	group.Go(func() error { return w.to.call(ctx, "ReceiveUDP", agent.ReceiveUDP{Time: s.udp}, &got) })
	group.Go(func() error {
		to := netip.AddrPortFrom(w.to.overlay, udpPort)
		return w.from.call(ctx, "SendUDP", agent.SendUDP{To: to, Size: size, Time: s.udp + s.udpTail()}, new(int64))
	})
	if err := group.Wait(); err != nil {
		return err
	}
	f[key] = float64(got.Packets) / got.Elapsed.Seconds() / 1e3
	select {
	case <-time.After(drain):
	case <-ctx.Done():
	}
	return nil
}

func (w way) ping(ctx context.Context, d, gap time.Duration) (got agent.Pinged, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+callPatience, errors.New("the pings do not end"))
	defer cancel()
	if err := w.from.call(ctx, "Ping", agent.Ping{To: w.to.overlay, Time: d, Gap: gap}, &got); err != nil {
		return got, err
	}
	if got.Lost == got.Sent {
		return got, fmt.Errorf("none of %d echoes came back", got.Sent)
	}
	return got, nil
}

func (w way) flood(ctx context.Context, d time.Duration, f figures) error {
	got, err := w.ping(ctx, d, 0)
	if err == nil {
		f["flood_rtt_us"] = float64(got.Mean) / 1e3
	}
	return err
}

func (w way) idle(ctx context.Context, d time.Duration, f figures) error {
	got, err := w.ping(ctx, d, idleGap)
	if err == nil {
		f["idle_rtt_p50_us"] = float64(got.P50) / 1e3
		f["idle_rtt_p99_us"] = float64(got.P99) / 1e3
	}
	return err
}

// load pings while one stream runs, which starts a little earlier and ends later.
func (w way) load(ctx context.Context, s schedule, f figures) error {
	var got agent.Pinged
	var group errgroup.Group
	group.Go(func() error {
		_, err := w.tcp(ctx, 1, s.load+2*s.loadMargin())
		return err
	})
	group.Go(func() (err error) {
		select {
		case <-time.After(s.loadMargin()):
		case <-ctx.Done():
			return nil
		}
		got, err = w.ping(ctx, s.load, loadGap)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	f["load_rtt_p99_ms"] = float64(got.P99) / 1e6
	return nil
}
