package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
)

// earlier has the VNIs of what sessions with other VNIs have left, and what stays when the next one begins (removeEarlier):
//
//   - Devices that have the UDP port of the session, until its device has the port too (removeHeld): in between somebody else could take that. After an attempt that
//     has failed they go at once.
//   - Guards, until that of the session has its rules, and their devices have gone (retireGuards): meanwhile they keep out packets that have no encapsulation, for as
//     long as the store is silent.
//
// The node file has them too, for cleanup and the next daemon.
type earlier struct {
	mu     sync.Mutex // retireGuards is called at any time
	held   []uint32   // devices
	guards []uint32   // those of the devices too
	late   bool       // guards were to go while their devices were there
}

// stay notes devices that stay, their guards, and other guards that were left. It does not note the guards of the VNIs in but: the next session has these VNIs again.
func (e *earlier) stay(guards, held []uint32, but ...uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = held
	for _, vni := range slices.Concat(guards, held) {
		if !slices.Contains(e.guards, vni) {
			e.guards = append(e.guards, vni)
		}
	}
	e.guards = slices.DeleteFunc(e.guards, func(vni uint32) bool { return slices.Contains(but, vni) })
}

// release returns the VNIs of the devices, which are to go now, and whether retireGuards has left their guards.
func (e *earlier) release() (held []uint32, late bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	held, late = e.held, e.late
	e.held, e.late = nil, false
	return held, late
}

// with returns vnis and those of the guards.
func (e *earlier) with(vnis []uint32) []uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Concat(vnis, e.guards)
}

// removeEarlier removes what earlier sessions have left, but for what the one of c takes over, and what stays for now.
func (n *Network) removeEarlier(ctx context.Context, c control.Network) {
	now := nodefile.Left{VNIs: []uint32{c.Backend.VNI}, Networks: c.Prefixes()}
	failed := n.takeBack()
	n.left = n.left.Without(now)
	var held []uint32
	if !failed && n.cfg.Mode != fit.Userspace && c.Backend.IsVXLAN() {
		var err error
		if held, err = leftovers.HaveSocket(n.left.VNIs, c.Backend.Port, c.Backend.GBP); err != nil {
			n.log.Debug("the UDP port may be free for a moment", "err", err)
		}
	}
	n.left = n.left.Without(nodefile.Left{VNIs: held})
	n.earlier.stay(n.removeLeft(ctx, n.left, now.Networks...), held, c.Backend.VNI)
	n.remember(now)
}

// takeBack has the devices that stay go with what the last session left, if there are any.
func (n *Network) takeBack() (any bool) {
	held, _ := n.earlier.release()
	n.left.VNIs = append(n.left.VNIs, held...)
	return len(held) > 0
}

// removeHeld removes the devices that have stayed.
func (n *Network) removeHeld(ctx context.Context) {
	held, late := n.earlier.release()
	n.removeLeft(ctx, nodefile.Left{VNIs: held})
	if late {
		n.retireGuards()
	}
}

// retireGuards removes the guards of earlier sessions, but for those that somebody else serves by now.
func (n *Network) retireGuards() {
	n.earlier.mu.Lock()
	defer n.earlier.mu.Unlock()
	var mine, held []uint32
	for _, vni := range n.earlier.guards {
		if slices.Contains(n.earlier.held, vni) {
			held, n.earlier.late = append(held, vni), true
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
	n.earlier.guards = held
	removed, err := leftovers.RemoveGuards(mine...)
	if err != nil {
		n.earlier.guards = append(held, mine...)
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	if len(removed) > 0 {
		n.cfg.StoreLog.Of(n.log).Info("removed the guard of the last network config", "removed", removed)
	}
}

// removeLeft removes l, but for the devices that somebody else serves by now, routes inside the networks of the next session, and the guards, of which it returns the VNIs.
func (n *Network) removeLeft(ctx context.Context, l nodefile.Left, next ...netip.Prefix) (guards []uint32) {
	var claims []*claim.Device
	l.VNIs, claims = n.claimAll(l.VNIs)
	defer claim.ReleaseAll(claims)
	if len(l.VNIs) == 0 && len(l.Networks) == 0 {
		return nil
	}
	removed, kept, err := leftovers.Remove(ctx, l, next...)
	if err != nil {
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	n.sessionLog().Info("removed what the last network config left", "vni", l.VNIs, "network", l.Networks, "removed", removed, "kept", kept)
	return l.VNIs
}

// remember notes l as what the session that begins will leave, for the next process too, which also learns of the guards that are left.
func (n *Network) remember(l nodefile.Left) {
	n.left = l
	l.VNIs = n.earlier.with(l.VNIs)
	_ = n.file.Remember(l) // settleFile tries again, and warns
}
