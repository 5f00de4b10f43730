package fit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Forecast is what this host would do with a network config. Nothing is opened for it, so that a
// missing kernel module or right is not foreseen.
type Forecast struct {
	Interface  string
	PublicIPs  []netip.Addr
	Dataplanes []DataplaneForecast
	// Underlay says what lies in the overlay network and no subnet may hold.
	Underlay []string `json:",omitempty"`
}

// DataplaneForecast is how one dataplane would carry the network.
type DataplaneForecast struct {
	Dataplane Mode     // or the backend type of a network that uses none
	Routes    []string `json:",omitempty"` // what they would be, and why, for each network
	Refused   string   `json:",omitempty"` // why it would not; empty: it would
}

// String returns what the dataplane would do in one line.
func (f DataplaneForecast) String() string {
	if f.Refused != "" {
		return "refused: " + f.Refused
	}
	return "routes to " + strings.Join(f.Routes, "; ")
}

// Err returns why no dataplane could carry the network; nil if one could, or nothing was foreseen.
func (f *Forecast) Err() error {
	if f == nil {
		return nil
	}
	var errs []error
	for _, d := range f.Dataplanes {
		if d.Refused == "" {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %s", d.Dataplane, d.Refused))
	}
	return fmt.Errorf("no dataplane of this host can carry the network: %w", errors.Join(errs...))
}

// Foresee returns what this host would do with a network config. An error means that there is no
// underlay such as o asks for, or that the routes of this host cannot be read.
func Foresee(ctx context.Context, c control.Network, o underlay.Options) (Forecast, error) {
	o.IPv4, o.IPv6 = c.EnableIPv4, c.EnableIPv6
	iface, err := underlay.Select(ctx, o)
	if err != nil {
		return Forecast{}, fmt.Errorf("choose underlay interface: %w", err)
	}
	u, err := Needs(ctx, iface, Store{})
	if err != nil {
		return Forecast{}, err
	}
	w := dataplane.Wanted{Networks: c.Prefixes()}
	w.Underlay = u.Inside(w.Networks, nil)
	reasons, err := device.ReasonsForSubnetRoutes(w)
	if err != nil {
		return Forecast{}, err
	}
	f := Forecast{Interface: iface.Name}
	for _, end := range iface.Underlays(c.EnableIPv4, c.EnableIPv6) {
		f.PublicIPs = append(f.PublicIPs, end.Public)
	}
	for _, need := range u.Needs {
		if !need.Yields && slices.ContainsFunc(w.Networks, func(p netip.Prefix) bool { return p.Contains(need.Addr) }) {
			f.Underlay = append(f.Underlay, need.String())
		}
	}
	modes := []Mode{Kernel, Userspace}
	if !c.Backend.IsVXLAN() {
		modes = []Mode{Mode(c.Backend.Type)}
	}
	for _, mode := range modes {
		f.Dataplanes = append(f.Dataplanes, foresee(c, iface, u, mode, reasons))
	}
	return f, nil
}

// foresee returns what one dataplane would do; reasons are those for routes to each subnet.
func foresee(c control.Network, iface underlay.Interface, u control.Underlay, mode Mode, reasons map[netip.Prefix]string) (f DataplaneForecast) {
	f.Dataplane = mode
	err := Host{Mode: mode, Underlay: iface}.Carries(c)
	if err == nil {
		_, _, err = control.Allocate(c, control.Node{Underlay: u}, nil, func(int) int { return 0 })
	}
	if err != nil {
		f.Refused = strings.TrimPrefix(err.Error(), "network config: ")
		return f
	}
	for _, p := range c.Prefixes() {
		switch why := reasons[p]; {
		case c.Backend.Type == control.BackendAlloc:
			f.Routes = append(f.Routes, fmt.Sprintf("%s: none", p))
		case mode != Userspace:
			f.Routes = append(f.Routes, fmt.Sprintf("%s: one for each subnet", p))
		case why != "":
			f.Routes = append(f.Routes, fmt.Sprintf("%s: one for each subnet: %s", p, why))
		default:
			f.Routes = append(f.Routes, fmt.Sprintf("%s: one", p))
		}
	}
	return f
}
