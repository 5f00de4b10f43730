package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
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

// traces tell what overlays have left in the network namespace: by their VNI devices and
// traffic rules, by their networks the routes that do not lead to a device.
type traces struct {
	vnis     []uint32
	networks []netip.Prefix
}

// takeDevice claims the device of the session that begins, and removes what the last one left
// and this one does not take over.
func (n *network) takeDevice(ctx context.Context, c control.Network) (net.PacketConn, error) {
	claim, err := claimDevice(c.Backend.VNI)
	if err != nil {
		return nil, err
	}
	now := traces{[]uint32{c.Backend.VNI}, c.Prefixes()}
	n.last = n.last.without(now)
	n.removeLast(ctx)
	n.setLast(now)
	return claim, nil
}

// setLast makes t the traces of the last session, for the next process too.
func (n *network) setLast(t traces) {
	n.last = t
	if err := n.file.remember(t); err != nil {
		n.log.Warn("a daemon that starts with another network config will not remove what this one leaves", "err", err)
	}
}

// text has a line per trace.
func (t traces) text() string {
	var b strings.Builder
	for _, v := range t.vnis {
		fmt.Fprintf(&b, "vni %d\n", v)
	}
	for _, p := range t.networks {
		fmt.Fprintf(&b, "network %s\n", p)
	}
	return b.String()
}

// parseTraces reads what text has written, and passes over the rest.
func parseTraces(text string) (t traces) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, " ")
		value, whole := strings.CutSuffix(value, "\n")
		if !whole { // half written
			continue
		}
		switch key {
		case "vni":
			if v, err := strconv.ParseUint(value, 10, 24); err == nil && v > 0 {
				t.vnis = append(t.vnis, uint32(v))
			}
		case "network":
			if p, err := netip.ParsePrefix(value); err == nil {
				t.networks = append(t.networks, p)
			}
		}
	}
	return t
}

func (t traces) without(other traces) traces {
	return traces{
		slices.DeleteFunc(slices.Clone(t.vnis), func(v uint32) bool { return slices.Contains(other.vnis, v) }),
		slices.DeleteFunc(slices.Clone(t.networks), func(p netip.Prefix) bool { return slices.Contains(other.networks, p) }),
	}
}

// removeLast removes what the last session left, but the devices that somebody else serves by now.
func (n *network) removeLast(ctx context.Context) {
	t := n.last
	n.last = traces{}
	var claims deviceClaims
	defer func() { claims.release() }()
	t.vnis = slices.DeleteFunc(t.vnis, func(vni uint32) bool {
		claim, err := claimDevice(vni)
		if err != nil {
			n.log.Warn("overlay of the last network config is left", "err", err)
			return true
		}
		claims = append(claims, claim)
		return false
	})
	if len(t.vnis) == 0 && len(t.networks) == 0 {
		return
	}
	removed, err := t.remove(ctx)
	if err != nil {
		n.log.Error("overlay of the last network config not wholly removed", "err", err)
	}
	n.log.Info("removed what the last network config left", "vni", t.vnis, "network", t.networks, "removed", removed)
}

// remove removes all of it. It returns what it removed, in words, and goes on after an error.
func (t traces) remove(ctx context.Context) (removed []string, err error) {
	if len(t.networks) > 0 {
		err = withdrawRoutes(ctx, t.networks)
	}
	if len(t.vnis) == 0 {
		return nil, err
	}
	removed, merr := masq.Cleanup(ctx, t.vnis...)
	gone, derr := removeDevices(t.vnis)
	return append(removed, gone...), errors.Join(err, merr, derr)
}

// withdrawRoutes removes the direct routes and blackholes inside networks.
func withdrawRoutes(ctx context.Context, networks []netip.Prefix) error {
	r, err := hostroute.Open(hostroute.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.Sync(ctx, dataplane.Wanted{Networks: networks})
	return err
}

// removeDevices removes overlay devices, and with them all that is on them.
func removeDevices(vnis []uint32) (removed []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	for _, vni := range vnis {
		for _, family := range []string{"flannel", "flannel-v6"} {
			name := fmt.Sprintf("%s.%d", family, vni)
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

// networksIn returns the overlay networks that a subnet file names.
func networksIn(subnetFile string) (networks []netip.Prefix) {
	f, err := os.Open(subnetFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), "=")
		if key != "FLANNEL_NETWORK" && key != "FLANNEL_IPV6_NETWORK" {
			continue
		}
		if p, err := netip.ParsePrefix(value); err == nil {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}
