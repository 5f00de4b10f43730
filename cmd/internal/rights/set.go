package rights

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities: bit n is that of number n (linux/capability.h).
type Set uint64

// The capabilities that a daemon may need.
const (
	NetAdmin       Set = 1 << unix.CAP_NET_ADMIN        // devices, routes, rules, settings, marks, and buffers of sockets
	NetRaw         Set = 1 << unix.CAP_NET_RAW          // probes; iptables
	NetBindService Set = 1 << unix.CAP_NET_BIND_SERVICE // ports below 1024
	Chown          Set = 1 << unix.CAP_CHOWN            // the group of the admin socket
	Mknod          Set = 1 << unix.CAP_MKNOD            // a missing /dev/net/tun
	DACOverride    Set = 1 << unix.CAP_DAC_OVERRIDE     // files of other users
)

// dac are the capabilities by which a process may use files of other users.
const dac = DACOverride | 1<<unix.CAP_DAC_READ_SEARCH

// String returns the names of the capabilities, in the order of their numbers.
func (s Set) String() string {
	names := map[Set]string{NetAdmin: "net_admin", NetRaw: "net_raw", NetBindService: "net_bind_service", Chown: "chown", Mknod: "mknod", DACOverride: "dac_override"}
	var all []string
	for n := range 64 {
		one := Set(1) << n
		switch name := names[one]; {
		case s&one == 0:
		case name != "":
			all = append(all, name)
		default:
			all = append(all, fmt.Sprint(n))
		}
	}
	return strings.Join(all, ",")
}

// sets are the permitted, effective and inheritable capabilities of a thread.
type sets struct{ permitted, effective, inheritable Set }

func header() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// read returns those of the calling thread.
func read() (s sets, err error) {
	var d [2]unix.CapUserData
	if err := unix.Capget(header(), &d[0]); err != nil {
		return s, fmt.Errorf("capget: %w", err)
	}
	join := func(low, high uint32) Set { return Set(low) | Set(high)<<32 }
	return sets{join(d[0].Permitted, d[1].Permitted), join(d[0].Effective, d[1].Effective), join(d[0].Inheritable, d[1].Inheritable)}, nil
}

// Has reports whether this process has a capability.
func Has(one Set) bool {
	now, err := read()
	return err == nil && now.effective&one != 0
}

func (s sets) data() *[2]unix.CapUserData {
	part := func(shift int) unix.CapUserData {
		return unix.CapUserData{Permitted: uint32(s.permitted >> shift), Effective: uint32(s.effective >> shift), Inheritable: uint32(s.inheritable >> shift)}
	}
	return &[2]unix.CapUserData{part(0), part(32)}
}

// and returns what is in s and in keep.
func (s sets) and(keep Set) sets {
	return sets{s.permitted & keep, s.effective & keep, s.inheritable & keep}
}
