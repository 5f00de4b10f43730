package history_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

const (
	leaseTTL = 2 * time.Second
	calm     = 20 * time.Second // within which everybody agrees when all is mended
	tooLong  = 5 * time.Minute  // for a history, however busy this machine is
)

// history is one run of many nodes.
type history struct {
	*recorder
	world   *world
	number  int
	prefix  string
	nodeTTL time.Duration
	bug     bug
	network control.Network

	rng      *rand.Rand // of the driver
	machines []*machine
	snaps    [][]entry
	operator *etcd.Store
	state    string   // of an etcd that this history has alone: the directory of its data
	states   []string // earlier ones
	config   string
	clones   atomic.Int32   // machines that are not in the list
	outage   gate           // shut: etcd does not run
	ends     errgroup.Group // what ends the faults
}

// plan is what a history is made of.
type plan struct {
	nodes  int
	faults time.Duration // how long faults are drawn
	clones bool          // draw clones
	alone  bool          // with an etcd of its own, which can go back to an earlier state
	bug    bug
}

// run runs one history and returns what is wrong with it: of one with a bug, which need not settle,
// two owners alone.
func (w *world) run(number int, seed uint64, p plan) (wrong []string, err error) {
	state := ""
	if p.alone {
		if w, err = openWorld(); err != nil {
			return nil, err
		}
		defer w.close()
		state = filepath.Join(w.dir, "data1")
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	subnets := p.nodes - 1 - rng.IntN(p.nodes/4+1)
	config := fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.%d.0","Backend":{"Type":"vxlan"}}`, subnets)
	if two := rng.IntN(4) == 0; two || p.bug.twoFamilies {
		config = fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.%d.0","EnableIPv6":true,"IPv6Network":"fd05::/48",
			"IPv6SubnetMin":"fd05:0:0:1::","IPv6SubnetMax":"fd05:0:0:%x::","Backend":{"Type":"vxlan"}}`, subnets, subnets)
	}
	h := &history{recorder: &recorder{begin: time.Now()}, world: w, number: number, prefix: fmt.Sprintf("/h%d", number), nodeTTL: 2 * time.Second, bug: p.bug, rng: rng,
		state: state, config: config}
	if p.clones { // no busy machine may make a living host look dead
		h.nodeTTL = 10 * time.Second
	}
	if h.network, err = control.ParseNetwork([]byte(config)); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if _, err := w.client.Put(ctx, h.prefix+"/config", config); err != nil {
		return nil, err
	}
	h.operator, err = etcd.Open(ctx, etcd.Config{Endpoints: w.client.Endpoints(), Prefix: h.prefix, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer h.operator.Close()
	for i := range p.nodes {
		m := &machine{h: h, host: host{i, fmt.Sprintf("%02x%030x", i, 0), netip.AddrFrom4([4]byte{192, 0, 0, byte(i)})}}
		h.machines = append(h.machines, m)
		m.start()
	}
	h.drive(ctx, p)
	differ := ""
	if p.bug.name == "" {
		differ = h.settle(ctx)
	}
	for _, m := range h.machines {
		m.running().cancel()
	}
	for _, m := range h.machines {
		m.end()
	}
	wrong = h.check()
	if differ != "" {
		wrong = append(wrong, differ)
	}
	_, err = w.client.Delete(ctx, h.prefix+"/", clientv3.WithPrefix())
	return wrong, err
}

// logger returns the logger of a node: its lines are in the report of what is wrong.
func (h *history) logger(by host) *slog.Logger {
	return slog.New(slog.NewTextHandler(logged{h, by}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type logged struct {
	h  *history
	by host
}

// Write implements io.Writer.
func (l logged) Write(b []byte) (int, error) {
	_, text, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	l.h.logf(l.by.name(), "%s", text)
	return len(b), nil
}

// settle waits until every node has agreed with the store once, and returns what differs if one does not.
// Time in which this machine is too busy to answer at once is not counted: leases are short.
func (h *history) settle(ctx context.Context) (differ string) {
	const step, quick = 50 * time.Millisecond, 100 * time.Millisecond
	pending := slices.Clone(h.machines)
	for counted := time.Duration(0); counted < calm && h.now() < tooLong; {
		begin := time.Now()
		entries, err := h.below(ctx, "/subnets/")
		if err != nil {
			return err.Error()
		}
		owner := map[netip.Prefix]netip.Addr{}
		for _, e := range entries {
			if l, err := control.ParseLease(strings.TrimPrefix(e.key, h.prefix+"/subnets/"), []byte(e.value)); err == nil {
				owner[l.Subnet], owner[l.IPv6Subnet] = l.PublicIP, l.PublicIP
			}
		}
		if pending = slices.DeleteFunc(pending, func(m *machine) bool { return m.agrees(owner) }); len(pending) == 0 {
			return ""
		}
		time.Sleep(step)
		if time.Since(begin) < quick {
			counted += step
		}
	}
	m := pending[0]
	s := m.running().ctl.Status()
	return fmt.Sprintf("%d nodes do not agree with the store, of these m%d: it serves %v, has %s (held: %v)\n%s",
		len(pending), m.machine, m.serving(), s.Lease.CIDRs(), s.Held, h.list(map[string]bool{"etcd": true, m.name(): true}))
}

// agrees reports whether a machine serves the subnets that it has, and the store gives it those.
func (m *machine) agrees(owner map[netip.Prefix]netip.Addr) bool {
	s, served := m.running().ctl.Status(), m.serving()
	if !s.Held { // what it serves is of an earlier run, unless this one has lost it
		return s.Stats.Losses == 0 || len(served) == 0
	}
	return slices.Equal(served, subnetsOf(s.Lease)) && !slices.ContainsFunc(served, func(p netip.Prefix) bool { return owner[p] != m.ip })
}

// seedOf returns the seed of a run: OVERLAYD_SEED, or another one each time.
func seedOf(t *testing.T) (seed uint64) {
	t.Helper()
	seed = uint64(rand.Uint32())
	if given := os.Getenv("OVERLAYD_SEED"); given != "" {
		if _, err := fmt.Sscan(given, &seed); err != nil {
			t.Fatalf("OVERLAYD_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}

// histories returns how many histories to run: OVERLAYD_HISTORIES, which says that there is time for
// many, or a few.
func histories(t *testing.T) (count int, many bool) {
	t.Helper()
	given := os.Getenv("OVERLAYD_HISTORIES")
	if given == "" {
		return 2, false
	}
	if _, err := fmt.Sscan(given, &count); err != nil {
		t.Fatalf("OVERLAYD_HISTORIES: %v", err)
	}
	return count, true
}

// TestHistories: in no history have two nodes a right to one subnet at once.
func TestHistories(t *testing.T) {
	const atOnce = 6
	count, _ := histories(t)
	seed, w := seedOf(t), newWorld(t)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range count {
		group.Go(func() error {
			wrong, err := w.run(i, seed+uint64(i), plan{nodes: 30, faults: 4 * leaseTTL, clones: i%4 == 3, alone: i%8 == 1})
			for _, text := range wrong {
				t.Errorf("history %d, seed %d: %s", i, seed+uint64(i), text)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
