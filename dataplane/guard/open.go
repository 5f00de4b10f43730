package guard

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// processSeed is the seed of all tables that this process makes: those of a later session have the same origins.
var processSeed = sync.OnceValue(func() uint32 { return rand.Uint32() | 1 })

// Open prepares for the rules. If the kernel cannot have them, it says why. The rules that an earlier run has left for this port are not touched
// before the first Sync. If there are none, and no overlay device, Open shuts the port until then.
func Open(c Config) (*Guard, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	switch {
	case c.Deaf:
		c.Resync = watch.DeafResync
	case c.Resync == 0:
		c.Resync = defaultResync
	}
	if c.Synced == nil {
		c.Synced = func() {}
	}
	c.Synced = sync.OnceFunc(c.Synced)
	c.seed, c.labels, c.below = processSeed(), c.labels || labels(), bridgeBelow(c.Link)
	if r, err := dataplane.KernelRelease(); err != nil || r.Before(5, 7) {
		c.noIncoming = true
	}
	g := &Guard{cfg: c, name: dataplane.GuardTable(c.VNI), report: dataplane.NewReporter(c.Log, "guard"), kernel: true, relaxed: time.Now().Add(c.Settle)}
	if c.Deaf {
		g.report.Polls(c.Resync)
	}
	g.relinked.Store(true)
	g.members = newMembers(&g.cfg, kind{})
	if c.Check == dataplane.SourceOff {
		g.open.Store(true)
		_, err := Cleanup(c.VNI)
		if err != nil {
			c.Log.Warn("the guard of an earlier run may be left", "table", g.name, "err", err)
		}
		c.Synced()
		return g, nil
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_NETFILTER, Must: []int{unix.NFNLGRP_NFTABLES}, Deaf: c.Deaf})
	if err != nil {
		return nil, fmt.Errorf("open guard: %w", explain(err))
	}
	g.watch = w
	if g.links, err = watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK}, Deaf: c.Deaf}); err != nil {
		w.Close()
		return nil, fmt.Errorf("open guard: %w", err)
	}
	if err := g.begin(); err != nil {
		g.Close()
		return nil, fmt.Errorf("open guard: %w", explain(err))
	}
	return g, nil
}

// begin learns what an earlier run has left. If there is nothing, it tries whether the kernel takes all that the rules need, which
// takes 20 ms or more: after a crash packets wait for them.
func (g *Guard) begin() error {
	c, err := read(g.name, true)
	if err != nil {
		return err
	}
	if c.exists && !c.open {
		g.cfg.noOrigins = g.cfg.lackOrigins
		g.cfg.seed = cmp.Or(c.seed, g.cfg.seed)
		g.members.adopt(c.sets)
		g.there, g.text, g.chains = true, c.text, named(c.chains)
		// A table for a process that forwards has no chain for what the kernel's device gets.
		g.open.Store(slices.Contains(c.chains, chainArrive))
		g.isShut = c.port == 0
		if err := g.books.begin(g.name); err != nil || c.covers(g.cfg.Port) || g.isOff() {
			return err
		}
		return g.shutNew()
	}
	if c.exists { // the first Sync undoes what somebody has changed
		g.cfg.seed = cmp.Or(c.seed, g.cfg.seed)
		if err := g.books.begin(g.name); err != nil {
			return err
		}
	}
	if err := g.tryOnce(); err != nil {
		return err
	}
	for _, d := range g.cfg.devices() {
		if _, err := netlink.LinkByName(d); err == nil {
			g.open.Store(true) // it forwards already
			return nil
		}
	}
	if g.isOff() {
		g.open.Store(true)
		return nil
	}
	g.isShut = true
	return g.write(facts{shut: true})
}

// lacks reports whether err may say that the kernel lacks an expression.
func lacks(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) }

// taken has the configs with which the kernel has taken all that the rules can have.
var taken sync.Map

// tryOnce is try, unless the kernel has taken all from another network of this process. What it lacks may have come since.
func (g *Guard) tryOnce() error {
	c := g.cfg
	c.Log, c.Off, c.Synced, c.VNI, c.Port, c.Temporary, c.seed = nil, nil, nil, 0, 0, nil, 0 // what varies from one network to the next
	like := fmt.Sprintf("%+v", c)
	if _, known := taken.Load(like); known {
		return nil
	}
	err := g.try()
	if err == nil && !g.cfg.noOrigins && !g.cfg.noKinds {
		taken.Store(like, nil)
	}
	return err
}

// try finds out which of the expressions that the rules can do without the kernel has.
func (g *Guard) try() error {
	g.tried = true
	err := g.tryEach()
	if err == nil && g.cfg.noOrigins {
		g.cfg.Log.Info("the kernel cannot note by whom a packet was sent: a peer on the same machine can hide packets with sources of other peers behind its own",
			"fix", "use a kernel with CONFIG_NETWORK_SECMARK and CONFIG_NFT_HASH, or --dataplane=userspace")
	}
	return err
}

func (g *Guard) tryEach() error {
	c, first := &g.cfg, error(nil)
	for _, without := range []struct{ origins, kinds bool }{{}, {origins: true}, {kinds: true}, {true, true}} {
		c.noOrigins, c.noKinds = without.origins || c.lackOrigins, without.kinds
		err := g.tryAll()
		if err == nil || !lacks(err) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// tryAll makes a table with every kind of expression, and removes it in the same batch.
func (g *Guard) tryAll() error {
	name := g.name + "-try"
	own, all := prefixes("192.0.2.0/24", "2001:db8::/64"), prefixes("192.0.2.0/23", "2001:db8::/48")
	for _, kernel := range []bool{true, false} {
		f := facts{own: own, networks: all, kernel: kernel, sets: map[string]bool{}}
		steps := newTable(name)
		for _, u := range g.cfg.families() {
			f.sets[hostSet(u)] = true
			f.sets[pairSet(u, ipv4, 24)] = true
			f.sets[pairSet(u, ipv6, 64)] = true
			f.sets[originSet(u, ipv4, 24)] = true
		}
		for set := range f.sets {
			steps = append(steps, nft.NewSet(nft.Inet, name, setOf(set), uint32(len(steps))))
		}
		chains, err := g.cfg.encode(f)
		if err != nil {
			return err
		}
		if err := nft.Commit(append(append(steps, changeChains(name, nil, chains)...), nft.DeleteTable(nft.Inet, name))); err != nil {
			return err
		}
	}
	return nil
}

// explain adds a way to mend an error, if one is known.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run as root or with CAP_NET_ADMIN", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: the kernel may lack nftables of family inet with sets, counters, limits and fib (modprobe nf_tables nft_fib_inet nft_ct nft_limit)", err)
	}
	return err
}
