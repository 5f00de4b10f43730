package leftovers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/sysctl"
)

// report is what became of what overlayd had left, in words.
type report struct {
	removed []string
	kept    []string     // with the reason
	given   []string     // to a flanneld
	missed  []string     // what it lacks now, with what to do
	addrs   []netip.Addr // of the devices that were kept
}

// keptLines returns what there still is, with the reason.
func (r report) keptLines() (lines []string) {
	for _, what := range r.given {
		lines = append(lines, what+": for flanneld, in its form")
	}
	return append(lines, r.kept...)
}

// ourDevices are the devices with overlayd's alias: those that can go, and those that somebody else uses.
type ourDevices struct {
	rt     *rtnl.Conn
	gone   []netlink.Link
	kept   []keptDevice
	missed []string // of those that go: who has no device then
}

type keptDevice struct {
	netlink.Link
	use      string // who uses it, and how that shows
	flanneld bool   // it is, or may be
	addrs    []netip.Addr
	mtu      int // that it is to have; 0: not known
}

func withDevices(do func(*ourDevices) error) error {
	rt, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer rt.Close()
	return do(&ourDevices{rt: rt})
}

// divide sorts the devices for which concern returns true: some can go, and others use the rest.
func (d *ourDevices) divide(concern func(name string) bool, o others) error {
	links, err := d.rt.OurDevices()
	for _, l := range links {
		if !concern(l.Attrs().Name) {
			continue
		}
		addrs, aerr := d.rt.Addrs(l)
		use, flanneld, uerr := o.use(l, addrs)
		if err = errors.Join(err, aerr, uerr); use != "" {
			d.kept = append(d.kept, keptDevice{l, use, flanneld, addrs, o.mtu(addrs)})
		} else {
			for _, f := range o.processes(addrs) {
				d.missed = append(d.missed, fmt.Sprintf("flanneld (process %d) has no device %s now: restart it", f.pid, l.Attrs().Name))
			}
			d.gone = append(d.gone, l)
		}
	}
	return err
}

func (d *ourDevices) isKept(index int) bool {
	return slices.ContainsFunc(d.kept, func(k keptDevice) bool { return k.Attrs().Index == index })
}

// remove removes the devices that can go, with everything on them.
func (d *ourDevices) remove(done *report) error {
	var errs []error
	for _, l := range d.gone {
		if err := d.rt.DeleteLink(l); err != nil {
			errs = append(errs, err)
			continue
		}
		done.removed = append(done.removed, "device "+l.Attrs().Name)
	}
	return errors.Join(errs...)
}

// leave removes from the kept devices what is only overlayd's, and takes its marks off them.
func (d *ourDevices) leave(ctx context.Context, done *report) error {
	var errs []error
	done.missed = append(done.missed, d.missed...)
	for _, k := range d.kept {
		name := k.Attrs().Name
		given, gone, err := kernel.Leave(ctx, k.Attrs().Index, k.flanneld)
		for _, what := range given {
			done.given = append(done.given, what+" on "+name)
		}
		for _, what := range gone {
			done.removed = append(done.removed, what+" on "+name)
		}
		if errs = append(errs, err, d.rt.Disown(k)); err == nil {
			done.removed = append(done.removed, "alias of "+name)
		}
		if k.mtu > k.Attrs().MTU && d.rt.SetLink(k.Attrs().Index, k.mtu, "", false) == nil { // else the kernel allows no more
			done.removed = append(done.removed, fmt.Sprintf("MTU %d of %s, which has %d again", k.Attrs().MTU, name, k.mtu))
		}
		reset, err := sysctl.Reset(name)
		if len(reset) > 0 {
			done.removed = append(done.removed, "overlayd's settings of "+name+", which has "+strings.Join(reset, ", ")+" again")
		}
		if err != nil { // /proc/sys is read-only in a container: nobody loses packets by that
			done.kept = append(done.kept, "settings of "+name+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		done.kept = append(done.kept, "device "+name+": "+k.use)
		done.addrs = append(done.addrs, k.addrs...)
	}
	return errors.Join(errs...)
}
