package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// leftovers tell what overlays have left in the network namespace: by their VNI devices and traffic
// rules, by their networks the routes that do not lead to a device.
type leftovers struct {
	vnis     []uint32
	networks []netip.Prefix
}

// takeDevice claims the device of the session that begins, unless it is the last one's, and removes
// what the last session left and this one does not take over.
func (n *Network) takeDevice(ctx context.Context, c control.Network) error {
	vni := c.Backend.VNI
	if n.device != nil && n.device.vni != vni {
		n.device.release()
		n.device = nil
	}
	if n.device == nil {
		claim, err := n.devices().claim(vni)
		if errors.Is(err, errNoClaimDir) {
			n.log.Warn("no claim of the overlay device: nothing keeps another overlayd from serving it too", "err", err)
		} else if err != nil {
			return err
		}
		n.device = claim
	}
	now := leftovers{[]uint32{vni}, c.Prefixes()}
	n.left = n.left.without(now)
	n.removeLeft(ctx)
	n.remember(now)
	return nil
}

func (n *Network) devices() devices { return devicesBeside(n.subnetFile) }

// remember makes l what the last session leaves, for the next process too.
func (n *Network) remember(l leftovers) {
	n.left = l
	if err := n.file.remember(l); err != nil {
		n.log.Warn("a daemon that starts with another network config will not remove what this one leaves", "err", err)
	}
}

// text has a line for each of them.
func (l leftovers) text() string {
	var b strings.Builder
	for _, v := range l.vnis {
		fmt.Fprintf(&b, "vni %d\n", v)
	}
	for _, p := range l.networks {
		fmt.Fprintf(&b, "network %s\n", p)
	}
	return b.String()
}

// parseLeftovers reads what text has written, and skips the rest.
func parseLeftovers(text string) (l leftovers) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, " ")
		value, whole := strings.CutSuffix(value, "\n")
		if !whole { // half written
			continue
		}
		switch key {
		case "vni":
			if v, err := strconv.ParseUint(value, 10, 24); err == nil && v > 0 {
				l.vnis = append(l.vnis, uint32(v))
			}
		case "network":
			if p, err := netip.ParsePrefix(value); err == nil {
				l.networks = append(l.networks, p)
			}
		}
	}
	return l
}

// without returns l without what other has too.
func (l leftovers) without(other leftovers) leftovers {
	return leftovers{
		slices.DeleteFunc(slices.Clone(l.vnis), func(v uint32) bool { return slices.Contains(other.vnis, v) }),
		slices.DeleteFunc(slices.Clone(l.networks), func(p netip.Prefix) bool { return slices.Contains(other.networks, p) }),
	}
}

// removeLeft removes what the last session left, but for the devices that somebody else serves by now.
func (n *Network) removeLeft(ctx context.Context) {
	l := n.left
	n.left = leftovers{}
	var claims []*deviceClaim
	defer func() { releaseAll(claims) }()
	l.vnis = slices.DeleteFunc(l.vnis, func(vni uint32) bool {
		if n.device != nil && n.device.vni == vni {
			return false
		}
		claim, err := n.devices().claim(vni)
		if err != nil && !errors.Is(err, errNoClaimDir) {
			n.log.Warn("overlay of the last network config is left", "err", err)
			return true
		}
		claims = append(claims, claim)
		return false
	})
	if len(l.vnis) == 0 && len(l.networks) == 0 {
		return
	}
	removed, err := l.remove(ctx)
	if err != nil {
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	n.log.Info("removed what the last network config left", "vni", l.vnis, "network", l.networks, "removed", removed)
}

func releaseAll(claims []*deviceClaim) {
	for _, c := range claims {
		c.release()
	}
}

// remove removes all of it. It returns what it removed, in words, and goes on after an error.
func (l leftovers) remove(ctx context.Context) (removed []string, err error) {
	if len(l.networks) > 0 {
		err = withdrawRoutes(ctx, l.networks)
	}
	if len(l.vnis) == 0 {
		return nil, err
	}
	removed, merr := masq.Cleanup(ctx, l.vnis...)
	gone, derr := removeDevices(l.vnis)
	return append(removed, gone...), errors.Join(err, merr, derr)
}

// withdrawRoutes removes the direct routes and blackholes inside networks.
func withdrawRoutes(ctx context.Context, networks []netip.Prefix) error {
	r, err := hostroute.Open(hostroute.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer r.Close()
	w := dataplane.Wanted{Networks: networks}
	_, err = r.Sync(ctx, w)
	return errors.Join(err, r.Prune(ctx, w))
}

// removeDevices removes overlay devices, and with them everything on them.
func removeDevices(vnis []uint32) (removed []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	for _, vni := range vnis {
		for _, name := range []string{dataplane.DeviceName(vni), dataplane.DeviceNameV6(vni)} {
			gone, rerr := rt.RemoveOurs(name)
			if err = errors.Join(err, rerr); gone {
				removed = append(removed, "device "+name)
			}
		}
	}
	return removed, err
}

// removeAll removes what every overlayd has left in this network namespace.
func removeAll(ctx context.Context) (removed []string, err error) {
	for _, clean := range []func() ([]string, error){
		func() ([]string, error) { return masq.Cleanup(ctx) }, hostroute.Cleanup, kernel.Cleanup,
	} {
		gone, cerr := clean()
		removed, err = append(removed, gone...), errors.Join(err, cerr)
	}
	return removed, err
}
