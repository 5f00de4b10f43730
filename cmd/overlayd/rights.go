package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/rights"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/stores"
)

// checkFiles refuses a file that this process can read only because root may read any: it is read again while the daemon
// runs, and by then the daemon has given up that right.
func checkFiles(o *flags.Flags) error {
	type named struct{ by, file string }
	files := []named{{"--etcd-cafile", o.Etcd.CAFile}, {"--etcd-certfile", o.Etcd.CertFile}, {"--etcd-keyfile", o.Etcd.KeyFile}, {"--etcd-password-file", o.Etcd.PasswordFile()}, {"--kubeconfig-file", o.Kube.Kubeconfig},
		{"--env-file", strings.TrimPrefix(o.Process.EnvFile, "-")}}
	if !o.Kube.Enabled { // else it is among those of the store
		files = append(files, named{"--net-config-path", o.Network.ConfigPath})
	}
	for _, file := range stores.New(o, nil).Files() {
		files = append(files, named{"--kube-subnet-mgr", file})
	}
	for _, f := range files {
		if f.file == "" {
			continue
		}
		if err := rights.CanRead(f.file); err != nil {
			return usagef("%s: %w: the daemon gives up the right to read any file once it is set up: give it to this user with chown", f.by, err)
		}
	}
	return nil
}

// giveUpRights keeps what the daemon needs from now on, and gives up all other rights for good. port is the UDP port of VXLAN.
func giveUpRights(o *flags.Flags, c node.Config, d *node.Daemon, port uint16) {
	keep := rights.NetAdmin
	if c.ProbeInterval > 0 || c.Rules.Masquerade || c.Rules.Forward { // the rules may need iptables, which has raw sockets
		keep |= rights.NetRaw
	}
	if o.Process.AdminGroup >= 0 {
		keep |= rights.Chown
	}
	waits := func(e status.Endpoint) bool { return !e.Listening && rights.BindsPrivileged("tcp://"+e.Address) }
	if slices.ContainsFunc(d.Endpoints(), waits) {
		keep |= rights.NetBindService
	}
	if port > 0 && port < rights.PrivilegedPorts || o.Etcd.Embedded && rights.BindsPrivileged(o.Etcd.ListenURL) {
		keep |= rights.NetBindService
	}
	dir := o.Network.SubnetDir
	if !o.Network.Several() {
		dir = filepath.Dir(o.Network.SubnetFile)
	}
	rights.GiveUp(c.Log, keep|rights.ForDirs(c.Log, dir))
}
