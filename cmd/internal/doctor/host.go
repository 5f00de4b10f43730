package doctor

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// checkBridge looks whether packets between pods of this host pass iptables, where kube-proxy has its rules.
func checkBridge(o *overlay) []Result {
	l := o.podLink()
	switch {
	case l == nil && o.isEmpty():
		return unknown(noSubnet + o.todo())
	case l == nil || l.Type() != "bridge":
		return ok("no bridge has the pods of this host")
	}
	const path = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if value, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(value)) == "0" {
		return warn("packets between pods of this host do not pass iptables: with kube-proxy, Services fail between them",
			"modprobe br_netfilter, and sysctl -w net.bridge.bridge-nf-call-iptables=1; nothing if you have no kube-proxy")
	}
	return ok("packets between pods of this host pass iptables")
}

// checkBuffer looks whether the kernel dropped datagrams before the userspace dataplane read them.
func checkBuffer(o *overlay) []Result {
	if o.status == nil {
		return unknown(o.untold())
	}
	lost := o.status.Counters["drops_"+dataplane.DropQueueFull.String()] + o.status.SharedPort["drops_"+dataplane.DropQueueFull.String()]
	if lost > 0 {
		return warn(fmt.Sprintf("%d datagrams were dropped before the daemon read them: the receive buffer was full, or their checksum was wrong", lost),
			"see which: nstat -az '*InCsumErrors' '*RcvbufErrors'. For the buffer give the daemon more CPU time, or raise it: sysctl -w net.core.rmem_max=16777216, and restart the daemon")
	}
	return ok("no datagram was dropped before the daemon read it")
}

// checkChecksums looks for kernels that send wrong checksums if a vxlan device computes them and masquerading chooses the
// port at random (mended in Linux 5.7).
func checkChecksums(o *overlay) []Result {
	release, err := dataplane.KernelRelease()
	if err != nil {
		return unreadable("the release of the kernel", err)
	}
	if !release.Before(5, 7) || o.isPlain() {
		return ok("Linux " + release.Text + " sends right checksums")
	}
	if len(o.devices) == 0 {
		return unknown("there is no overlay device: " + o.todo())
	}
	for _, l := range o.devices {
		if isVxlan(l) {
			return warn(fmt.Sprintf("Linux %s can send wrong checksums through %s: connections to Services then take a minute", release.Text, l.Attrs().Name),
				"ethtool -K "+l.Attrs().Name+" tx-checksum-ip-generic off, or a newer kernel")
		}
	}
	return ok("no vxlan device computes checksums")
}

// earliest is before any run of this version.
func earliest() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// checkClock looks at the time of this host.
func checkClock(*overlay) []Result {
	const fix = "run a time service, such as systemd-timesyncd or chrony"
	if now := time.Now(); now.Before(earliest()) {
		return fail("this host believes that it is "+now.UTC().Format(time.DateOnly)+": certificates are not valid yet", fix)
	}
	var t unix.Timex
	if state, err := unix.Adjtimex(&t); err != nil {
		return unreadable("the state of the clock", err)
	} else if state == unix.TIME_ERROR {
		return warn("no time service keeps the clock of this host: the times in its log may be wrong", fix)
	}
	return ok("a time service keeps the clock")
}
