// Package sysctl keeps the kernel settings on which an overlay relies: this host forwards, and the
// overlay devices forward, accept packets whose way back is a different one, neither follow nor send redirects, and answer no ARP.
//
// The kernel reports changes of forwarding and rp_filter (RTM_NEWNETCONF). It does not report the other settings, so they
// are read more than once a second, which costs a few system calls. Settings of other interfaces are never
// written, except for what turning forwarding on needs (routers.go). An interface that does not forward is reported (others.go).
package sysctl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Paths below /proc/sys.
const (
	ipForward  = "net/ipv4/ip_forward"
	ip4Conf    = "net/ipv4/conf"
	ip6Conf    = "net/ipv6/conf"
	ip6Forward = ip6Conf + "/all/forwarding"
)

// Config says what is to be kept.
type Config struct {
	Log        *slog.Logger
	VNI        uint32 // its devices, if they are there
	IPv4, IPv6 bool   // families of the overlay
	Underlay   string // interface whose way back and forwarding are looked at; empty: none
	Deaf       bool   // without the kernel's notices: for tests
}

// Settings are the kernel's settings that one overlay relies on. All calls must come from threads in one
// network namespace.
type Settings struct {
	cfg    Config
	watch  *watch.Subscription
	report *dataplane.Reporter

	noticed atomic.Bool // the kernel told of a change, and sayOthers has not looked since

	mu      sync.Mutex
	settled map[string]bool // as wanted when they were last looked at, by path
	indices map[string]int  // of the devices then
	said    time.Time       // when sayOthers looked
	notices pace.Notices
	back    wayBack
	subnets []netip.Prefix                    // own
	read    func(file string) ([]byte, error) // os.ReadFile, but in tests
}

// Open subscribes to the kernel's notices, in the network namespace of the calling thread. It writes nothing.
func Open(c Config) (*Settings, error) {
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE,
		May: []int{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF}, Deaf: c.Deaf})
	if err != nil {
		return nil, fmt.Errorf("open kernel settings: %w", err)
	}
	s := &Settings{cfg: c, watch: w, report: dataplane.NewReporter(c.Log, "settings"), settled: map[string]bool{}, indices: map[string]int{}, read: os.ReadFile}
	s.noticed.Store(true)
	return s, nil
}

// setting is what one sysctl is to be.
type setting struct{ path, value string }

// wanted returns what is to be kept, forwarding of the whole host first: the kernel then changes that of
// all interfaces.
func (s *Settings) wanted() (all []setting) {
	if s.cfg.IPv4 {
		all = append(all, setting{ipForward, "1"})
	}
	if s.cfg.IPv6 {
		all = append(all, setting{ip6Forward, "1"})
	}
	for _, device := range s.devices() {
		all = append(all, ofDevice(device, s.cfg.IPv4, s.cfg.IPv6)...)
	}
	return all
}

// ofDevice returns what an overlay device is to have, if it is there.
func ofDevice(device string, v4, v6 bool) (all []setting) {
	if dir := filepath.Join(ip4Conf, device); v4 && exists(dir) {
		all = append(all, setting{dir + "/forwarding", "1"}, setting{dir + "/rp_filter", "2"}, setting{dir + "/accept_redirects", "0"},
			setting{dir + "/secure_redirects", "0"}, setting{dir + "/send_redirects", "0"},
			setting{dir + "/accept_source_route", "0"}, // the kernel puts another destination into the packet behind the guard
			setting{dir + "/arp_ignore", "8"})          // nobody asks: the neighbours are known
	}
	if dir := filepath.Join(ip6Conf, device); v6 && exists(dir) {
		all = append(all, setting{dir + "/forwarding", "1"}, setting{dir + "/accept_redirects", "0"}, setting{dir + "/accept_ra", "0"})
		for _, routing := range []string{"/seg6_enabled", "/rpl_seg_enabled"} { // as accept_source_route; the second is there since Linux 5.7
			if exists(dir + routing) {
				all = append(all, setting{dir + routing, "0"})
			}
		}
	}
	return all
}

// Reset gives a device that somebody else uses from now on the settings of a new device, where it has those of an overlay. Two stay:
// forwarding, which is that of the host, and accept_ra, which flanneld turns off too. It returns what it has set, and does as much as
// possible even if it returns an error.
func Reset(device string) (reset []string, err error) {
	var errs []error
	for _, s := range ofDevice(device, true, true) {
		dir, name := filepath.Split(s.path)
		b, err := os.ReadFile(filepath.Join("/proc/sys", filepath.Dir(filepath.Clean(dir)), "default", name))
		value := strings.TrimSpace(string(b))
		if err == nil && (name == "forwarding" || name == "accept_ra" || value == s.value || !is("/proc/sys/"+dir, name, s.value)) {
			continue
		}
		if err == nil {
			err = rtnl.SetSysctl(s.path, value)
		}
		if errs = append(errs, err); err == nil {
			reset = append(reset, rtnl.SysctlName(s.path)+"="+value)
		}
	}
	return reset, errors.Join(errs...)
}

func (s *Settings) devices() []string {
	return []string{dataplane.DeviceName(s.cfg.VNI), dataplane.DeviceNameV6(s.cfg.VNI)}
}

func exists(path string) bool {
	_, err := os.Stat("/proc/sys/" + path)
	return err == nil
}

// Sync implements dataplane.Part. What cannot be set is logged and reported by Status, and is not an error: a host
// that carries only its own traffic works without.
func (s *Settings) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	s.mu.Lock()
	s.back.know(w.Peers)
	s.subnets = w.Subnets
	s.mu.Unlock()
	s.look()
	return w, nil
}

// Prune implements dataplane.Part.
func (s *Settings) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (s *Settings) Status() dataplane.PartStatus { return s.report.Status() }

// Close implements dataplane.Part; the settings stay.
func (s *Settings) Close() error { return s.watch.Close() }

const (
	// period is the time between two looks without a notice.
	period = 750 * time.Millisecond
	// sayPeriod is the least time between two looks at all interfaces of the host: those of many networks come one after the other, and each network looks.
	sayPeriod = 2 * time.Second
)

// Run sets again what others change, until ctx ends.
func (s *Settings) Run(ctx context.Context, _ func()) error {
	return s.watch.Run(ctx, watch.Loop{
		Concerns: func(h unix.NlMsghdr, _ []byte) bool {
			concerns := h.Type == unix.RTM_NEWNETCONF
			if concerns {
				s.noticed.Store(true)
			}
			return concerns
		},
		Look:   func(context.Context) error { s.look(); return nil },
		Spread: pace.Spread{Gather: 10 * time.Millisecond, Between: 250 * time.Millisecond, Rest: time.Second},
		Resync: period,
	})
}

// look sets what is not as wanted.
func (s *Settings) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changes []dataplane.Change
	var errs []error
	var warnings []dataplane.Warning
	wanted := s.wanted()
	s.forgetReplaced()
	for _, w := range wanted {
		was, err := s.set(w)
		if errors.As(err, new(unreadError)) { // it may well be as wanted
			errs = append(errs, err)
			s.say(w.path, "cannot read a setting of the kernel", err, "as the error tells")
			continue
		}
		if err != nil {
			errs = append(errs, dataplane.WithFix(err, w.fix()))
			if w.path == ipForward || w.path == ip6Forward {
				warnings = append(warnings, NotForwarding(w.path == ip6Forward, err))
			} else {
				s.say(w.path, "cannot change a setting of the overlay device", err, w.fix())
			}
		} else if was != w.value && s.settled[w.path] {
			changes = append(changes, dataplane.Change{Op: dataplane.OpReplace, Kind: "sysctl", Key: w.path, Was: was, Is: w.value})
		}
		s.settled[w.path] = err == nil
	}
	for path := range s.settled { // of devices that have gone
		if !slices.ContainsFunc(wanted, func(w setting) bool { return w.path == path }) {
			delete(s.settled, path)
		}
	}
	if len(changes) > 0 {
		again := s.forgetReplaced() // a new device came meanwhile, with settings of its own
		changes = slices.DeleteFunc(changes, func(c dataplane.Change) bool {
			return slices.Contains(again, filepath.Base(filepath.Dir(c.Key)))
		})
	}
	ways := s.ways()
	if now := time.Now(); s.noticed.Load() && now.Sub(s.said) >= sayPeriod {
		s.said = now
		s.noticed.Store(false)
		s.sayOthers(ways)
	}
	warnings = append(warnings, NoWay(ways...)...)
	err := errors.Join(errs...)
	state := dataplane.StateOK
	if err != nil {
		state = dataplane.StateDegraded
	}
	s.report.Publish(state, err, dataplane.ObjectStatus{Kind: "sysctl", Wanted: len(wanted), Have: len(wanted) - len(errs)})
	s.report.Repaired(changes...)
	s.report.Warn(append(warnings, s.back.look(time.Now(), s.cfg.Underlay)...)...)
}

// forgetReplaced forgets the settings of devices that another device has replaced, as when the dataplane changes. Nobody has changed the settings
// of the new one. It returns the names of these devices.
func (s *Settings) forgetReplaced() (names []string) {
	for _, d := range s.devices() {
		index := 0
		if exists(filepath.Join(ip4Conf, d)) {
			if s.isAt(s.indices[d], d) { // to ask for the link costs a hundred times as much
				continue
			}
			if l, err := netlink.LinkByName(d); err == nil {
				index = l.Attrs().Index
			}
		}
		if index == s.indices[d] {
			continue
		}
		s.indices[d] = index
		names = append(names, d)
		for path := range s.settled {
			if filepath.Base(filepath.Dir(path)) == d {
				delete(s.settled, path)
			}
		}
	}
	return names
}

// isAt reports whether the interface with that index has that name.
func (s *Settings) isAt(index int, name string) (is bool) {
	i, err := unix.NewIfreq(name)
	conn, cerr := s.watch.SyscallConn()
	if err != nil || cerr != nil {
		return false
	}
	i.SetUint32(uint32(index))
	err = conn.Control(func(fd uintptr) { is = unix.IoctlIfreq(int(fd), unix.SIOCGIFNAME, i) == nil && i.Name() == name })
	return is && err == nil
}

// unreadError means that it is not known what value a setting has.
type unreadError struct{ error }

// Unwrap lets errors.Is and errors.As see the cause.
func (e unreadError) Unwrap() error { return e.error }

// set gives one setting its value, and returns the one it had.
func (s *Settings) set(w setting) (was string, err error) {
	b, err := s.read("/proc/sys/" + w.path)
	if was = strings.TrimSpace(string(b)); err == nil && was == w.value {
		return was, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", unreadError{fmt.Errorf("read sysctl %s: %w", rtnl.SysctlName(w.path), err)}
	}
	var routers error
	if w.path == ip6Forward {
		routers = keepRouterAdvertisements()
	}
	if err = rtnl.SetSysctl(w.path, w.value); err == nil && routers != nil {
		s.sayRouters(routers)
	}
	if err == nil && w.path == ipForward {
		err = forwardEverywhere()
	}
	if errors.Is(err, os.ErrNotExist) && w.path != ipForward && w.path != ip6Forward {
		return w.value, nil // the device has gone
	}
	return was, err
}

// NotForwarding is that this host does not forward the packets of a family, and why that cannot be turned on: nil if nobody has tried.
func NotForwarding(ipv6 bool, err error) dataplane.Warning {
	family, path := "IPv4", ipForward
	if ipv6 {
		family, path = "IPv6", ip6Forward
	}
	name := rtnl.SysctlName(path) + "=1"
	off, why := " forwarding is off", ""
	if err != nil {
		off, why = off+" and cannot be turned on", ": "+err.Error()
	}
	return dataplane.Warning{ID: dataplane.WarnForwarding, Fix: dataplane.FixOr(err, howToSet(name)),
		Text: family + off + ": only this host itself is reachable over the overlay, nothing behind it" + why}
}

func (w setting) fix() string { return howToSet(rtnl.SysctlName(w.path) + "=" + w.value) }

func howToSet(name string) string {
	return "sysctl -w " + name + " on the host, or docker run --sysctl " + name
}

// say reports once what is wrong with a setting, and what usually helps.
func (s *Settings) say(path, what string, err error, fix string) {
	if due, _ := s.notices.Due(time.Now(), pace.Notice{Key: path, Text: err.Error()}); len(due) > 0 {
		s.cfg.Log.Warn(what, "err", err, "fix", dataplane.FixOr(err, fix))
	}
}

// sayRouters reports once the interfaces on which this host, as it forwards now, takes no router advertisements.
func (s *Settings) sayRouters(err error) {
	if due, _ := s.notices.Due(time.Now(), pace.Notice{Key: "accept_ra", Text: err.Error()}); len(due) > 0 {
		s.cfg.Log.Warn("an interface takes no router advertisements any more, as this host forwards: its addresses and default route of IPv6 may go",
			"err", err, "fix", dataplane.FixOr(err, "set the sysctl on the host, or give the interface fixed addresses and routes"))
	}
}
