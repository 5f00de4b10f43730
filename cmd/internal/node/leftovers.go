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
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
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
	if n.device != nil && n.device.VNI != vni {
		n.releaseDevice()
	}
	if n.device == nil {
		c, err := n.devices().Claim(vni)
		if errors.Is(err, claim.ErrNoDir) {
			n.log.Warn("no claim of the overlay device: nothing keeps another overlayd from serving it too", "err", err)
		} else if err != nil {
			return err
		}
		if n.device = c; c != nil {
			n.daemon.claimed.add(vni)
		}
	}
	n.claimed.Store(true)
	now := leftovers{[]uint32{vni}, c.Prefixes()}
	n.left = n.left.without(now)
	n.removeLeft(ctx)
	n.remember(now)
	return nil
}

// releaseDevice gives up the claim of the last session's device.
func (n *Network) releaseDevice() {
	if n.device != nil {
		n.daemon.claimed.remove(n.device.VNI)
	}
	n.device.Release()
	n.device = nil
}

func (n *Network) devices() claim.Devices { return claim.Beside(n.subnetFile) }

// remember makes l what the last session leaves, for the next process too.
func (n *Network) remember(l leftovers) {
	n.left = l
	if err := n.file.remember(l); err != nil {
		n.log.Warn("a daemon that starts with another network config will not remove what this one leaves", "err", err)
	}
}

// wroteSubnetFile notes which subnet file is this daemon's work.
func (n *Network) wroteSubnetFile(modified time.Time) {
	if err := n.file.wrote(modified); err != nil {
		n.log.Warn("cleanup will take the subnet file for somebody else's", "err", err)
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
			if v, err := strconv.ParseUint(value, 10, 24); err == nil {
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
	var claims []*claim.Device
	l.vnis, claims = n.claimAll(l.vnis)
	defer releaseAll(claims)
	if len(l.vnis) == 0 && len(l.networks) == 0 {
		return
	}
	var done report
	o, err := findOthers(nil, nil)
	if err == nil {
		done, err = l.remove(ctx, o)
	}
	if err != nil {
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	n.log.Info("removed what the last network config left", "vni", l.vnis, "network", l.networks, "removed", done.removed, "kept", done.kept)
}

// claimAll claims the devices of vnis that are not the session's anyway. It returns the VNIs without those
// that another daemon serves, of which it warns.
func (n *Network) claimAll(vnis []uint32) (mine []uint32, claims []*claim.Device) {
	for _, vni := range vnis {
		if n.device == nil || n.device.VNI != vni {
			c, err := n.devices().Claim(vni)
			if err != nil && !errors.Is(err, claim.ErrNoDir) {
				n.log.Warn("overlay of the last network config is left", "err", err)
				continue
			}
			claims = append(claims, c)
		}
		mine = append(mine, vni)
	}
	return mine, claims
}

// rulesPatience bounds how long the end of a daemon waits for the lock of iptables.
const rulesPatience = 3 * time.Second

// removeRules removes the traffic rules of the last session. Devices, routes and entries stay.
func (n *Network) removeRules() {
	vnis, claims := n.claimAll(n.left.vnis)
	defer releaseAll(claims)
	if len(vnis) == 0 { // without VNIs Cleanup would mean all
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rulesPatience)
	defer cancel()
	removed, err := masq.Cleanup(ctx, vnis...)
	if err != nil {
		n.log.Error("traffic rules not wholly removed", "err", err, "fix", "overlayd cleanup --rules")
	}
	if len(removed) > 0 {
		n.log.Info("removed the traffic rules", "removed", removed)
	}
}

func releaseAll(claims []*claim.Device) {
	for _, c := range claims {
		c.Release()
	}
}

// remove removes all of it but for what o has. It goes on after an error.
func (l leftovers) remove(ctx context.Context, o others) (done report, err error) {
	if len(l.networks) > 0 {
		err = withdrawRoutes(ctx, l.networks)
	}
	if len(l.vnis) == 0 {
		return done, err
	}
	rules, merr := masq.Cleanup(ctx, l.vnis...)
	done.removed = append(done.removed, rules...)
	concerns := func(name string) bool {
		vni, ok := dataplane.DeviceVNI(name)
		return ok && slices.Contains(l.vnis, vni)
	}
	derr := withDevices(func(d *ourDevices) error {
		if err := d.divide(concerns, o); err != nil {
			return err
		}
		return errors.Join(d.remove(&done), d.leave(ctx, &done))
	})
	return done, errors.Join(err, merr, derr)
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

// removeAll removes what every overlayd has left in this network namespace, but for what o has.
func removeAll(ctx context.Context, o others) (done report, err error) {
	rules, err := masq.Cleanup(ctx)
	routes, rerr := hostroute.Cleanup()
	done.removed = append(rules, routes...)
	derr := withDevices(func(d *ourDevices) error {
		if err := d.divide(func(string) bool { return true }, o); err != nil {
			return err
		}
		gone, err := kernel.Cleanup(d.isKept)
		done.removed = append(done.removed, gone...)
		return errors.Join(err, d.leave(ctx, &done))
	})
	return done, errors.Join(err, rerr, derr)
}
