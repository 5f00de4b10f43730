// Package doctor checks this host for what keeps an overlay from working. It changes nothing. It works without a daemon;
// checks that need one are then unknown.
//
//	doctor.go    Result, and Run: the list of checks
//	scene.go     what the checks look at: the daemon's status, the subnet file, the devices
//	start.go     checks of what a daemon needs at its start
//	daemon.go    checks of what the daemon says: itself, its store, lease, peers
//	device.go    checks of the underlay interface, and of the overlay device, its MTU and its MAC
//	rules.go     checks of firewalls, forwarding and routes
//	podroutes.go asks the kernel which way packets of pods take
//	guard.go     checks of the guard and its mark
//	beside.go    check for a flanneld that runs, too
//	host.go      checks of the host: bridge, buffers, checksums, clock
//	print.go     Findings, and what overlayd doctor prints
//
// docs/troubleshooting.md explains each check to users.
package doctor

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
)

// State is the outcome of a check.
type State string

// The outcomes.
const (
	OK      State = "ok"
	Unknown State = "unknown" // it cannot be told
	Warn    State = "warn"    // it may cost packets, or makes faults hard to find
	Fail    State = "fail"    // it costs packets, or keeps changes from being made
)

// Result is what a check has found. A check has one or more.
type Result struct {
	ID      string `json:"id"`                // of the check: stable, in snake_case
	Network string `json:"network,omitempty"` // empty if there is one
	State   State  `json:"state"`
	Text    string `json:"text"`          // what was seen
	Fix     string `json:"fix,omitempty"` // what to do, if State is warn or fail
}

// Fails reports whether one of the results is a failure.
func Fails(all []Result) bool {
	for _, r := range all {
		if r.State == Fail {
			return true
		}
	}
	return false
}

// check looks at one overlay, or at the host if perHost is set.
type check struct {
	id      string
	perHost bool
	run     func(o *overlay) []Result
}

// checks are all, in the order in which they are told.
func checks() []check {
	return []check{
		{dataplane.WarnUnderlay, false, checkUnderlay}, // much of what is wrong follows from it
		{"daemon", true, checkDaemon},
		{"rights", true, checkRights},
		{"dataplanes", true, checkDataplanes},
		{"store", false, checkStore},
		{"certificates", true, checkCertificates},
		{dataplane.WarnFlanneld, false, checkFlanneld},
		{"lease", false, checkLease},
		{"duplicate_ip", false, checkClones},
		{"device", false, checkDevice},
		{"mac", false, checkMAC},
		{"path_mtu", false, checkMTU},
		{dataplane.WarnPort, false, checkPort},
		{"guard", false, checkGuard},
		{dataplane.WarnForwarding, false, checkForwarding},
		{dataplane.WarnReturnPath, false, checkReturnPath},
		{dataplane.WarnForward, false, checkForwardChains},
		{"foreign_routes", false, checkRoutes},
		{"cni_mtu", false, checkPods},
		{"br_netfilter", false, checkBridge},
		{"receive_buffer", false, checkBuffer},
		{"checksum_offload", false, checkChecksums},
		{"peers", false, checkPeers},
		{"clock", true, checkClock},
	}
}

// Run makes all checks in the network namespace of the calling thread.
func Run(s Scene) (all []Result) {
	overlays := s.overlays()
	for _, c := range checks() {
		on := overlays
		if c.perHost || len(on) == 0 {
			on = []overlay{{scene: &s}}
		}
		for i := range on {
			if !c.perHost && len(overlays) == 0 {
				text := "there is no overlay: no daemon answers, and no subnet file tells of one"
				if s.Daemon != nil {
					text = noNetwork
				}
				all = append(all, Result{ID: c.id, State: Unknown, Text: text})
				continue
			}
			for _, r := range c.run(&on[i]) {
				r.ID, r.Network = c.id, on[i].name
				all = append(all, r)
			}
		}
	}
	return all
}

func ok(text string) []Result        { return []Result{{State: OK, Text: text}} }
func unknown(text string) []Result   { return []Result{{State: Unknown, Text: text}} }
func fail(text, fix string) []Result { return []Result{{State: Fail, Text: text, Fix: fix}} }
func warn(text, fix string) []Result { return []Result{{State: Warn, Text: text, Fix: fix}} }

// unreadable is that a check could not look: the reasons in one line, or what gives it the right.
func unreadable(what string, err error) []Result {
	if errors.Is(err, fs.ErrPermission) {
		return unknown(what + " cannot be read without CAP_NET_ADMIN: run overlayd doctor as root")
	}
	return unknown(what + " cannot be read: " + strings.ReplaceAll(err.Error(), "\n", "; "))
}
