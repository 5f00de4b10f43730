// Package inherit decides which open TUN queues and UDP sockets a userspace dataplane can go on with. They come from another
// process, or from another dataplane of this process. It checks each file, because a service manager, or whoever started
// this process, may have handed over any file under any name.
package inherit

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// What the flags of an exported queue say besides the offloads that were asked for, which are the low 8 bits: the
// mode of the device.
const (
	flagVnet  = 1 << 32
	flagMulti = 1 << 33
)

const (
	queuePrefix  = "tun "
	socketPrefix = "udp "
	uplinkPrefix = "uplink " // see carrier.UplinkName
)

// QueueName is the name of the queues of a network's TUN device.
func QueueName(vni uint32) string { return queuePrefix + dataplane.DeviceName(vni) }

// SocketName is the name of the sockets that receive at an address.
func SocketName(local netip.AddrPort) string { return socketPrefix + local.String() }

// PortNames are those of the sockets and uplinks of a port of underlays.
func PortNames(underlays []dataplane.Underlay, port uint16) (names []string) {
	for _, u := range underlays {
		local := netip.AddrPortFrom(u.Local, port)
		names = append(names, SocketName(local), carrier.UplinkName(local))
	}
	return names
}

// IsTraffic reports whether packets come or go by a file of that name.
func IsTraffic(name string) bool {
	return strings.HasPrefix(name, queuePrefix) || strings.HasPrefix(name, socketPrefix) || isUplink(name)
}

func isUplink(name string) bool { return strings.HasPrefix(name, uplinkPrefix) }

// VNI returns whose queue a file of that name is.
func VNI(name string) (vni uint32, ok bool) {
	device, ok := strings.CutPrefix(name, queuePrefix)
	if !ok {
		return 0, false
	}
	_, number, _ := strings.Cut(device, ".")
	n, err := strconv.ParseUint(number, 10, 24)
	return uint32(n), err == nil && QueueName(uint32(n)) == name
}

// Flags are those of a queue of a device with that mode.
func Flags(offloads uint8, mode tun.Mode) uint64 {
	flags := uint64(offloads)
	if mode.Vnet {
		flags |= flagVnet
	}
	if mode.Multi {
		flags |= flagMulti
	}
	return flags
}

// Identify names a file of a process that knows no names: a queue of a network's device, for which the process is taken
// to have asked for these offloads, or a socket that receives at its port.
func Identify(fd int, vni uint32, port uint16, offloads uint8) (name string, flags uint64, ok bool) {
	device, mode, err := tun.Queue(fd)
	if err == nil {
		return QueueName(vni), Flags(offloads, mode), device == dataplane.DeviceName(vni)
	}
	local, err := udp.LocalAddr(fd)
	if err != nil || local.Port() != port || udp.CheckInherited(fd, local) != nil {
		return "", 0, false
	}
	return SocketName(local), 0, true
}

// Want is what a dataplane, or a port that several share, would open by itself.
type Want struct {
	VNI      uint32
	Device   bool  // the queues of the device of VNI
	Offloads uint8 // of the device

	Locals []netip.AddrPort     // that sockets are bound to
	Tunnel bool                 // there are uplinks, too
	Multi  bool                 // as many sockets as a device has queues; without Device
	Pairs  func(multi bool) int // how many queues a device has, and sockets an address
	Name   func(offloads uint8) string
}

// Files are what a dataplane goes on with.
type Files struct {
	exports []carrier.Export
	uplinks []carrier.Export
	Mode    tun.Mode // of the device
}

// Of returns the files of one name, in their order.
func (f *Files) Of(name string) (files []*os.File) {
	if f == nil {
		return nil
	}
	for _, e := range f.exports {
		if e.Name == name {
			files = append(files, e.File)
		}
	}
	return files
}

// Uplink returns the file of the uplink for a local address, or nil.
func (f *Files) Uplink(local netip.AddrPort) *os.File {
	if f != nil {
		for _, e := range f.uplinks {
			if e.Name == carrier.UplinkName(local) {
				return e.File
			}
		}
	}
	return nil
}

// Close closes the files, if they are still open.
func (f *Files) Close() {
	if f != nil {
		carrier.CloseExports(f.exports)
		carrier.CloseExports(f.uplinks)
	}
}

// Has reports whether there are files of one name.
func (f *Files) Has(name string) bool {
	return len(f.Of(name)) > 0 || f != nil && slices.Contains(carrier.NamesOf(f.uplinks), name)
}

// Take returns the exports that are wanted and fit, nil if none does, and all others, of which err says why they are left. It
// closes nothing, but a device without an owner goes to the user of this process, or is deleted: see own. The queues of a device are taken all together or not at all, and so are the sockets of an address. An uplink is
// taken only with sockets, and one that is left is no error: nothing waits in it.
func Take(exports []carrier.Export, w Want) (f *Files, left []carrier.Export, err error) {
	f = &Files{}
	multi := w.Multi
	var errs []error
	take := func(name string, check func(list []carrier.Export) error) {
		of := func(e carrier.Export) bool { return e.Name == name }
		if !slices.ContainsFunc(exports, of) {
			return
		}
		list := slices.DeleteFunc(slices.Clone(exports), func(e carrier.Export) bool { return !of(e) })
		if err := errors.Join(checkVersion(list), check(list)); err != nil {
			errs, left = append(errs, err), append(left, list...)
		} else {
			f.exports = append(f.exports, list...)
		}
		exports = slices.DeleteFunc(slices.Clone(exports), of)
	}
	if w.Device {
		take(QueueName(w.VNI), func(list []carrier.Export) error { return f.checkQueues(w, list) })
	}
	if w.Device && f.Has(QueueName(w.VNI)) {
		multi = f.Mode.Multi
	}
	for _, local := range w.Locals {
		take(SocketName(local), func(list []carrier.Export) error { return checkSockets(local, list, w.Pairs(multi)) })
	}
	var uplinks []carrier.Export
	exports = slices.DeleteFunc(slices.Clone(exports), func(e carrier.Export) bool {
		if isUplink(e.Name) {
			uplinks = append(uplinks, e)
		}
		return isUplink(e.Name)
	})
	for _, e := range uplinks {
		fits := func(local netip.AddrPort) bool {
			return f.Has(SocketName(local)) && f.Uplink(local) == nil && e.Name == carrier.UplinkName(local)
		}
		if w.Tunnel && checkVersion([]carrier.Export{e}) == nil && slices.ContainsFunc(w.Locals, fits) {
			f.uplinks = append(f.uplinks, e)
		} else {
			left = append(left, e)
		}
	}
	if len(exports) > 0 {
		errs, left = append(errs, fmt.Errorf("%d files are not for this network, the first is %q", len(exports), exports[0].Name)), append(left, exports...)
	}
	if len(f.exports) == 0 {
		f = nil
	}
	return f, left, errors.Join(errs...)
}

func checkVersion(list []carrier.Export) error {
	for _, e := range list {
		if e.Version != carrier.ExportVersion {
			return fmt.Errorf("%q has version %d, not %d", e.Name, e.Version, carrier.ExportVersion)
		}
	}
	return nil
}

// checkQueues checks the queues of the device and finds the mode that this has.
func (f *Files) checkQueues(w Want, list []carrier.Export) error {
	name, flags := QueueName(w.VNI), list[len(list)-1].Flags
	f.Mode = tun.Mode{Vnet: flags&flagVnet != 0, Multi: flags&flagMulti != 0}
	for _, e := range list {
		if offloads := uint8(e.Flags); offloads != w.Offloads {
			return fmt.Errorf("%s has the offloads %s, not %s", name, w.Name(offloads), w.Name(w.Offloads))
		}
	}
	if n, want := len(list), w.Pairs(f.Mode.Multi); n != want {
		return fmt.Errorf("%s has %d queues, not %d", name, n, want)
	}
	if err := checkAll(list, func(fd int) error { return tun.CheckQueue(fd, dataplane.DeviceName(w.VNI), f.Mode) }); err != nil {
		return err
	}
	return own(dataplane.DeviceName(w.VNI), list)
}

// own gives the device of these queues to the user of this process if it has no owner, as older versions made it. Any user may have opened it
// until then: that another process has a queue of it is an error, after which the device is made anew.
func own(name string, list []carrier.Export) error {
	conn, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	l, err := conn.Link(name)
	if err != nil {
		return err
	}
	switch uid, err := conn.TUNOwner(l.Attrs().Index); {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case err != nil || uid >= 0:
		return err
	}
	alone := func() error {
		now, err := conn.Link(name)
		if err == nil && rtnl.TUNQueues(now) > len(list) {
			err = fmt.Errorf("%s has no owner, and another process has a queue of it: there are %d, not %d", name, rtnl.TUNQueues(now), len(list))
		}
		return err
	}
	if err := alone(); err != nil {
		return err
	}
	if err := checkAll(list[:1], tun.Own); err != nil {
		return err
	}
	if err := alone(); err != nil { // it came in between, and would keep its queue
		return errors.Join(err, conn.DeleteLink(l))
	}
	return nil
}

// checkSockets checks the sockets of an address, of which there is the same number for each.
func checkSockets(local netip.AddrPort, list []carrier.Export, want int) error {
	if n := len(list); n != want {
		return fmt.Errorf("%s has %d sockets, not %d", SocketName(local), n, want)
	}
	return checkAll(list, func(fd int) error { return udp.CheckInherited(fd, local) })
}

// checkAll runs a check of each file of one name.
func checkAll(list []carrier.Export, what func(fd int) error) error {
	for i, e := range list {
		conn, err := e.File.SyscallConn()
		if err == nil {
			var ferr error
			err = conn.Control(func(fd uintptr) { ferr = what(int(fd)) })
			err = errors.Join(err, ferr)
		}
		if err != nil {
			return fmt.Errorf("file %d of %q: %w", i, e.Name, err)
		}
	}
	return nil
}
