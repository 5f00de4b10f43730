package rtnl

import (
	"errors"
	"net/netip"
)

// WithdrawTo deletes overlayd's routes that take an address away from a route of others, whose destination is as long as beside says, and
// returns the deleted ones as ip(8) writes them. Whoever syncs an overlay again makes those that are right again.
func (c *Conn) WithdrawTo(a netip.Addr, beside int) (withdrawn []string, err error) {
	routes, err := c.ourRoutes()
	errs := []error{err}
	for _, r := range routes {
		if dst := Prefix(r.Dst); dst.Bits() <= beside || !dst.Contains(a) {
			continue
		}
		text := c.describe(r)
		if err := c.DeleteRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		withdrawn = append(withdrawn, text)
	}
	return withdrawn, errors.Join(errs...)
}
