package main

import (
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/rights"
)

// checkFiles refuses a file that this process can read only because root may read any: it is read again while the daemon
// runs, and by then the daemon has given up that right.
func checkFiles(o *flags.Flags) error {
	for _, f := range []struct{ flag, file string }{
		{"etcd-cafile", o.Etcd.CAFile}, {"etcd-certfile", o.Etcd.CertFile}, {"etcd-keyfile", o.Etcd.KeyFile}, {"kubeconfig-file", o.Kube.Kubeconfig},
	} {
		if f.file == "" {
			continue
		}
		if err := rights.CanRead(f.file); err != nil {
			return usagef("--%s: %w: the daemon gives up the right to read any file once it is set up: give it to this user with chown", f.flag, err)
		}
	}
	return nil
}

// giveUpRights keeps what the daemon needs from now on, and gives up all other rights for good. port is the UDP port of VXLAN.
func giveUpRights(o *flags.Flags, c node.Config, port uint16) {
	keep := rights.NetAdmin
	if c.ProbeInterval > 0 || c.Rules.Masquerade || c.Rules.Forward { // the rules may need iptables, which has raw sockets
		keep |= rights.NetRaw
	}
	if o.Process.AdminGroup >= 0 {
		keep |= rights.Chown
	}
	if port > 0 && port < privilegedPorts || o.Etcd.Embedded && isPrivileged(o.Etcd.ListenURL) {
		keep |= rights.NetBindService
	}
	dir := o.Network.SubnetDir
	if !o.Network.Several() {
		dir = filepath.Dir(o.Network.SubnetFile)
	}
	keepRights(c.Log, keep|forDirs(c.Log, dir))
}

// keepRights gives up all rights but some.
func keepRights(log *slog.Logger, keep rights.Set) {
	switch left, err := rights.Keep(keep); {
	case errors.Is(err, errors.ErrUnsupported):
		log.Warn("this process keeps all capabilities that it has: it was built with cgo", "fix", "build it with CGO_ENABLED=0, as make build does")
	case err != nil:
		log.Error("not all capabilities given up", "err", err)
	default:
		log.Info("set up: all capabilities but these are given up", "kept", left)
	}
}

// forDirs returns the right to use files of others if one of dirs, in which this process makes files, is another user's.
func forDirs(log *slog.Logger, dirs ...string) (keep rights.Set) {
	for _, dir := range dirs {
		if rights.Has(rights.DACOverride) && !rights.CanWrite(dir) {
			log.Warn("the capability DAC_OVERRIDE is kept: files are made in a directory of another user", "dir", dir, "fix", "give it to this user with chown")
			keep = rights.DACOverride
		}
	}
	return keep
}

// privilegedPorts are those below: to bind one takes a right (ip(7)).
const privilegedPorts = 1024

func isPrivileged(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port < privilegedPorts
}
