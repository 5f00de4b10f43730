package fit

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Unhide deletes the routes of overlays that hide the store, or the name servers if the store is reached by a name, and returns
// them. They are what an earlier daemon has left, under a config that held these addresses: nothing reads from its device, and no
// other daemon would ever learn of another config.
func Unhide(ctx context.Context, store Store) (withdrawn []string, err error) {
	var errs []error
	unhide := func(addrs []netip.Addr) {
		routes, err := withdrawTo(addrs)
		withdrawn, errs = append(withdrawn, routes...), append(errs, err)
	}
	isName := func(host string) bool { _, err := netip.ParseAddr(host); return err != nil }
	if slices.ContainsFunc(store.Hosts, isName) {
		unhide(nameServers(resolvConf))
	}
	unhide(AddressesOf(ctx, store.Hosts))
	return withdrawn, errors.Join(errs...)
}

// withdrawTo deletes the routes of overlays to addresses to which there is another way.
func withdrawTo(addrs []netip.Addr) (withdrawn []string, err error) {
	needs, err := underlay.ReadNeeds(underlay.Interface{}, rtnl.RouteProtocol, addrs...)
	if err != nil {
		return nil, err
	}
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var errs []error
	for i, a := range addrs {
		way := needs.Ways[i].Route
		if !way.IsValid() || a.IsLoopback() || slices.Contains(needs.Locals, a) {
			continue
		}
		routes, err := conn.WithdrawTo(a, way.Bits())
		withdrawn, errs = append(withdrawn, routes...), append(errs, err)
	}
	return withdrawn, errors.Join(errs...)
}
