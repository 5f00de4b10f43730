package node

import (
	"errors"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
)

// oldGuards are the VNIs of guards that sessions with other VNIs have left. Each stays until the guard of the present session has its rules: meanwhile it keeps out
// packets that have no encapsulation, for as long as the store is silent. The node file has them too, for cleanup and the next daemon.
type oldGuards struct {
	mu   sync.Mutex
	vnis []uint32
	held []uint32 // those whose devices are there too: see holdPort
	late bool     // they were to go while the devices were there
}

// add notes guards that were left, but for those of VNIs that a session has again.
func (o *oldGuards) add(left []uint32, but ...uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, vni := range left {
		if !slices.Contains(o.vnis, vni) {
			o.vnis = append(o.vnis, vni)
		}
	}
	o.vnis = slices.DeleteFunc(o.vnis, func(vni uint32) bool { return slices.Contains(but, vni) })
}

// hold notes that devices of these VNIs stay. Their guards do, too.
func (o *oldGuards) hold(vnis []uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = vnis
}

// release returns the VNIs of those devices, which are to go now, and whether retireGuards has left their guards.
func (o *oldGuards) release() (vnis []uint32, late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	vnis, late = o.held, o.late
	o.held, o.late = nil, false
	return vnis, late
}

// with returns vnis and those of the guards.
func (o *oldGuards) with(vnis []uint32) []uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Concat(vnis, o.vnis)
}

// retireGuards removes the guards of earlier sessions, but for those that somebody else serves by now.
func (n *Network) retireGuards() {
	n.oldGuards.mu.Lock()
	defer n.oldGuards.mu.Unlock()
	var mine, held []uint32
	for _, vni := range n.oldGuards.vnis {
		if slices.Contains(n.oldGuards.held, vni) {
			held, n.oldGuards.late = append(held, vni), true
			continue
		}
		c, err := n.devices().Claim(vni)
		if err == nil {
			defer c.Release()
		}
		if !errors.As(err, new(*claim.ServedError)) {
			mine = append(mine, vni)
		}
	}
	n.oldGuards.vnis = held
	removed, err := leftovers.RemoveGuards(mine...)
	if err != nil {
		n.oldGuards.vnis = append(held, mine...)
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	if len(removed) > 0 {
		n.log.Info("removed the guard of the last network config", "removed", removed)
	}
}
