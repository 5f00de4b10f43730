package doctor

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/fixes"
	"github.com/overlayd/overlayd/cmd/internal/rights"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// carries reports whether the daemon carries a network: then it has found what it needs.
func (s *Scene) carries() bool {
	return s.Daemon != nil && slices.ContainsFunc(s.Daemon.Networks, func(n status.Network) bool { return !n.SessionStart.IsZero() })
}

// checkRights looks whether this process may configure the network, as a daemon that is started like it must.
func checkRights(o *overlay) []Result {
	switch {
	case o.scene.carries():
		return ok("the daemon has those that it needs")
	case rights.Has(rights.NetAdmin):
		return ok("this process has CAP_NET_ADMIN, which a daemon needs")
	case o.scene.Daemon != nil:
		return unknown("this process has no CAP_NET_ADMIN; whether the daemon has it is not known: run overlayd doctor as root")
	}
	return fail("this process has no CAP_NET_ADMIN: an overlayd with the same rights ends at its start", fixFor(kernel.ErrPermission))
}

// checkDataplanes looks whether this host has what each dataplane needs. It makes no device.
func checkDataplanes(o *overlay) []Result {
	switch {
	case o.scene.carries():
		return ok("the daemon has found what it needs")
	case !rights.Has(rights.NetAdmin):
		return unknown("without CAP_NET_ADMIN it cannot be tried: run overlayd doctor as root")
	}
	return dataplanes(kernel.Supported(), noTUN())
}

// dataplanes says which dataplane works, by why each does not.
func dataplanes(noKernel, noTUN error) []Result {
	switch {
	case noKernel != nil && noTUN != nil:
		return fail("no dataplane works here: kernel: "+noKernel.Error()+"; userspace: "+noTUN.Error(), fixFor(noKernel)+"; "+fixFor(noTUN))
	case noKernel != nil:
		return warn("only the userspace dataplane works here: "+noKernel.Error(), fixFor(noKernel))
	case noTUN != nil:
		return warn("only the kernel dataplane works here: "+noTUN.Error(), fixFor(noTUN)+", if --dataplane=userspace is wanted")
	}
	return ok("this host has what the kernel dataplane needs, and the userspace dataplane")
}

// noTUN returns why the userspace dataplane cannot make its device. The daemon makes a missing file of that, if it may.
func noTUN() error {
	if _, err := os.Stat(tun.Path); errors.Is(err, fs.ErrNotExist) && rights.Has(rights.Mknod) {
		return nil
	}
	return tun.Usable()
}

// fixFor is what the daemon says that helps.
func fixFor(err error) string { return cmp.Or(fixes.Of(nil, "", err), "as the error tells") }
