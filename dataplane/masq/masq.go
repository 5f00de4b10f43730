package masq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Config configures the rules of one network.
type Config struct {
	Log *slog.Logger
	// VNI distinguishes the rules of several networks on one host.
	VNI uint32
	// Port is the UDP port of VXLAN: masquerading never uses it as a source port.
	Port uint16
	// Direct says that packets to the pods of peers may leave by the underlay, without the overlay
	// device.
	Direct bool
	// NFTables writes to nftables instead of iptables.
	NFTables bool
	// Masquerade translates packets that leave the overlay, Forward accepts its packets in
	// FORWARD. Without either, old rules are removed.
	Masquerade, Forward bool
	// RandomFully chooses the source ports of masquerading fully at random.
	RandomFully bool
	// Resync is the time between comparisons without a notification; 0 means 5 s.
	Resync time.Duration
	// Deaf notices no changes of others but by Resync, which is a few seconds then: for tests.
	Deaf bool
}

// defaultResync is flannel's.
const defaultResync = 5 * time.Second

// Rules are the traffic rules of one network. Methods may be called from
// several goroutines, whose threads are in one network namespace.
type Rules struct {
	config Config
	watch  *watch.Subscription // of changes of nftables
	report *dataplane.Reporter

	running atomic.Bool // Run repairs
	done    atomic.Pointer[result]

	mu      sync.Mutex // held while writing, for as long as iptables waits for its lock
	keepers []*keeper  // of either family
	wanted  []ruleSet  // nil before the first Sync
	notices pace.Notices
}

// result is that of the last time rules were written.
type result struct {
	wanted []ruleSet
	err    error
}

// Open prepares for the rules; it writes none. Changes that others make are noticed from now on,
// and repaired by Run.
func Open(c Config) (*Rules, error) {
	if c.Port == 0 || c.VNI >= 1<<24 {
		return nil, fmt.Errorf("open traffic rules: VNI %d and port %d: want a VNI below 2^24 and a port", c.VNI, c.Port)
	}
	if c.Resync < 0 {
		return nil, fmt.Errorf("open traffic rules: resync period %v: must not be negative", c.Resync)
	}
	switch {
	case c.Deaf:
		c.Resync = watch.DeafResync
	case c.Resync == 0:
		c.Resync = defaultResync
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_NETFILTER, Must: []int{unix.NFNLGRP_NFTABLES}, Deaf: c.Deaf})
	if err != nil {
		return nil, fmt.Errorf("open traffic rules: %w", explain(err))
	}
	r := &Rules{config: c, watch: w, report: dataplane.NewReporter(c.Log, "rules")}
	r.report.Polls(c.Resync) // iptables may change rules without a notification
	for _, f := range []family{ipv4, ipv6} {
		r.keepers = append(r.keepers, &keeper{config: c, family: f, names: namesOf(c.VNI)})
	}
	return r, nil
}

// Sync replaces the old rules by those of w at once, and then removes the rules that another
// mode or flannel left for the same network. It does nothing if nothing has changed. While Run
// runs, Run retries what failed, and Sync returns its error until it succeeds: the caller need
// not wait for the lock of iptables.
func (r *Rules) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	want := build(r.config, w)
	if o := r.done.Load(); o != nil && r.running.Load() && slices.EqualFunc(o.wanted, want, ruleSet.equal) {
		if o.err != nil {
			r.watch.Wake()
		}
		return w, o.err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted == nil {
		r.warnBridge(w)
	}
	r.wanted = want
	var errs []error
	for i, k := range r.keepers {
		if k.settled && k.want.equal(r.wanted[i]) {
			continue
		}
		if _, err := k.apply(ctx, r.wanted[i]); err != nil {
			k.err = k.explain(err)
			r.notices.Due(time.Now(), k.notice()) // the caller has it
			errs = append(errs, k.err)
		} else {
			k.err = nil
		}
	}
	return w, r.finish(ctx, errs)
}

// Prune implements dataplane.Part. Sync has replaced all rules at once: old ones cannot stay
// beside new ones, because the order of rules matters.
func (r *Rules) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (r *Rules) Status() dataplane.PartStatus { return r.report.Status() }

// kindRules is the kind of object that Status counts: all rules of one family.
const kindRules = "rule set"

// finish publishes the result of writing, unless ctx has ended.
func (r *Rules) finish(ctx context.Context, errs []error) error {
	o := &result{r.wanted, errors.Join(errs...)}
	if ctx.Err() != nil {
		r.done.Store(nil)
		return o.err
	}
	r.done.Store(o)
	rules := dataplane.ObjectStatus{Kind: kindRules}
	for i, k := range r.keepers {
		if !r.wanted[i].isEmpty() {
			rules.Wanted++
			if k.err == nil {
				rules.Have++
			}
		}
	}
	r.report.Publish(dataplane.StateOf(o.err), o.err, rules)
	return o.err
}

// warnBridge warns if iptables does not see bridged packets: our rules are for routed ones,
// but kube-proxy's need both.
func (r *Rules) warnBridge(w dataplane.Wanted) {
	if r.config.NFTables || !r.config.Masquerade && !r.config.Forward {
		return
	}
	for f, file := range map[family]string{ipv4: "bridge-nf-call-iptables", ipv6: "bridge-nf-call-ip6tables"} {
		_, used := ofFamily(w.Networks, f)
		if _, err := os.Stat("/proc/sys/net/bridge/" + file); used && err != nil {
			r.config.Log.Warn("iptables does not see packets between pods of one host, which service addresses need",
				"missing", "/proc/sys/net/bridge/"+file, "fix", "modprobe br_netfilter")
		}
	}
}

// Close releases what Open acquired. The rules stay.
func (r *Rules) Close() error { return r.watch.Close() }

// notice is the present fault.
func (k *keeper) notice() pace.Notice {
	return pace.Notice{Key: k.family.String(), Text: k.err.Error()}
}

// explain adds whose rules could not be written.
func (k *keeper) explain(err error) error {
	return fmt.Errorf("write %s traffic rules: %w", k.family, explain(err))
}

// explain adds a way to fix the error, if one is known.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run as root or with CAP_NET_ADMIN", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the kernel may lack nftables with nat, masquerade and fib (modprobe nft_masq nft_fib_ipv4 nft_fib_ipv6); EnableNFTables false uses iptables", err)
	}
	return err
}
