package controltest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// client is the Store of one node on a Memory. Every call is atomic.
type client struct {
	m     *Memory
	alive netip.Addr // the public IP whose sign of life this client gives; guarded by m.mu
	id    string     // of the node that acquired last; guarded by m.mu

	lengths *control.Lengths // of that node
}

// begin locks the memory; end unlocks it.
func (c *client) begin(ctx context.Context) error {
	c.m.mu.Lock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.m.down
}

func (c *client) end() { c.m.mu.Unlock() }

// close ends the node's sign of life; its lease stays until it expires.
func (c *client) close() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.die()
}

func (c *client) die() {
	if c.alive.IsValid() {
		delete(c.m.live, c.alive)
		c.alive = netip.Addr{}
	}
}

// Network implements control.Store.
func (c *client) Network(ctx context.Context) (control.Network, error) {
	defer c.end()
	if err := c.begin(ctx); err != nil {
		return control.Network{}, err
	}
	return c.network()
}

func (c *client) network() (control.Network, error) {
	if c.m.config == nil {
		return control.Network{}, control.ErrNoNetwork
	}
	return control.ParseNetwork(c.m.config)
}

// Acquire implements control.Store.
func (c *client) Acquire(ctx context.Context, node control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	defer c.end()
	if err := c.begin(ctx); err != nil {
		return control.Lease{}, err
	}
	n, err := c.network()
	if err != nil {
		return control.Lease{}, err
	}
	l, err := n.Publish(node, vteps)
	if err != nil {
		return control.Lease{}, err
	}
	node.PublicIP, node.PublicIPv6 = l.PublicIP, l.PublicIPv6
	ip := l.Identity()
	for _, former := range node.Former {
		if c.m.live[former].ID == node.ID && former != ip {
			delete(c.m.live, former)
		}
	}
	if other, ok := c.m.live[ip]; ok && other.ID != node.ID {
		return control.Lease{}, fmt.Errorf("%w: %s belongs to host %q", control.ErrTaken, ip, other.Name)
	}
	if c.m.full != nil {
		return control.Lease{}, c.m.full
	}
	c.id, c.lengths = node.ID, node.Lengths
	if l.Subnet, l.IPv6Subnet, err = c.choose(n, node, vteps); err != nil {
		return control.Lease{}, err
	}
	if e, ok := c.m.entries[l.Key()]; ok {
		if old, err := e.lease(l.Key()); err == nil {
			l = node.KeepMACs(l, old)
		}
	}
	if c.alive != ip {
		c.die()
	}
	c.m.live[ip], c.alive = node, ip
	return c.write(l), nil
}

// choose returns what the node has, what it had before anything else, else something free.
func (c *client) choose(n control.Network, node control.Node, vteps []dataplane.VTEP) (subnet, v6 netip.Prefix, err error) {
	var taken []netip.Prefix
	var own []control.Lease
	for _, key := range c.m.sorted() {
		l, err := c.m.entries[key].lease(key)
		switch isOwn := err == nil && c.owns(node, node.Ownership(n, vteps, l, c.m.entries[key].by == node.ID), l); {
		case isOwn && control.Compatible(n, l.Subnet, l.IPv6Subnet) && node.CheckSubnets(l.Subnet, l.IPv6Subnet) == nil:
			own = append(own, l)
		case isOwn && l.Handle != 0:
			c.m.delete(key)
			node.Previous = append(slices.Clone(node.Previous), l.Subnet, l.IPv6Subnet)
		default:
			taken = control.AppendTaken(taken, n, key, c.m.entries[key].value)
			taken = control.AppendPublic(taken, n, c.m.entries[key].value)
		}
	}
	if len(own) > 0 {
		// What it had goes first, and then reservations; of both it takes a reservation first.
		rank := func(l control.Lease) (rank int) {
			if !slices.Contains(node.Previous, l.Subnet) && !slices.Contains(node.Previous, l.IPv6Subnet) {
				rank += 2
			}
			if l.Handle != 0 {
				rank++
			}
			return rank
		}
		l := slices.MinFunc(own, func(a, b control.Lease) int { return rank(a) - rank(b) })
		return l.Subnet, l.IPv6Subnet, nil
	}
	taken, node.Avoid = n.Oversized(taken, node.Lengths)
	return control.Allocate(n, node, taken, rand.IntN)
}

func (c *client) owns(node control.Node, o control.Ownership, l control.Lease) bool {
	if o == control.OwnUnlessLive {
		other, live := c.m.live[l.Identity()]
		return !live || other.ID == node.ID
	}
	return o == control.Own
}

// write puts an own lease and returns it with the store's part filled in. Over a
// reservation it writes one.
func (c *client) write(l control.Lease) control.Lease {
	l.Handle, l.Expires = c.m.revision+1, time.Now().Add(c.m.ttl)
	if e, ok := c.m.entries[l.Key()]; ok && e.handle == 0 {
		l.Handle, l.Expires = 0, time.Time{}
	}
	e := c.m.put(l.Key(), l.Value(), l.Handle)
	if l.Handle != 0 { // a reservation counts as written by nobody
		e.by = c.id
	}
	l.CreateRevision, l.ModRevision = e.create, e.mod
	return l
}

// Renew implements control.Store.
func (c *client) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	defer c.end()
	if err := c.begin(ctx); err != nil {
		return control.Lease{}, err
	}
	key := l.Key()
	e, ok := c.m.entries[key]
	if !ok {
		return c.putBack(l)
	}
	if same := string(e.value) == string(l.Value()); same && e.handle == 0 {
		l.Handle, l.CreateRevision, l.ModRevision, l.Expires = 0, e.create, e.mod, time.Time{}
		return l, nil
	} else if same && e.handle == l.Handle {
		e.stopExpiry()
		e.expiry = time.AfterFunc(c.m.ttl, func() { c.m.expire(key, e) })
		l.ModRevision, l.Expires = e.mod, time.Now().Add(c.m.ttl)
		return l, nil
	}
	if c.m.full != nil {
		return control.Lease{}, c.m.full
	}
	// Junk over the own entry is put right; a lease of somebody else is not touched.
	now, err := e.lease(key)
	switch {
	case err == nil && !now.SamePublicIP(l):
		return control.Lease{}, fmt.Errorf("%w: %s belongs to %s", control.ErrLost, l.CIDRs(), now.Identity())
	case e.handle == 0 && err == nil: // a reservation for this node
	case err != nil && e.handle == 0: // junk by hand
		e.handle = l.Handle
	case e.create != l.CreateRevision:
		return control.Lease{}, fmt.Errorf("%w: %s was deleted and written again", control.ErrLost, key)
	}
	return c.write(l), nil
}

// putBack writes an entry that is gone, unless another one has come to hold a part of it.
func (c *client) putBack(l control.Lease) (control.Lease, error) {
	n, err := c.network()
	if err != nil {
		return control.Lease{}, err
	}
	for _, key := range c.m.sorted() {
		for _, p := range n.Rightful(control.AppendHeld(nil, n, key, c.m.entries[key].value), c.lengths) {
			if p.Overlaps(l.Subnet) || p.Overlaps(l.IPv6Subnet) {
				return control.Lease{}, fmt.Errorf("%w: %s overlaps it", control.ErrLost, key)
			}
		}
	}
	if c.m.full != nil {
		return control.Lease{}, fmt.Errorf("%w: %w", control.ErrGone, c.m.full)
	}
	return c.write(l), nil
}

// Release implements control.Store.
func (c *client) Release(ctx context.Context, l control.Lease) error {
	defer c.end()
	if err := c.begin(ctx); err != nil {
		return err
	}
	switch e, ok := c.m.entries[l.Key()]; {
	case !ok || e.handle != l.Handle:
	case e.handle != 0:
		c.m.delete(l.Key())
	case string(e.value) == string(l.Value()):
		c.m.put(l.Key(), l.Reservation().Value(), 0)
	}
	c.die()
	return nil
}

// Watch implements control.Store.
func (c *client) Watch(ctx context.Context) <-chan control.Update { return c.m.watch(ctx) }
