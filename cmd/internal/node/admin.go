package node

import (
	"context"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

// AdminConfig says what a daemon answers at its admin socket.
type AdminConfig struct {
	Group  int                         // number of the group that may use the socket; -1: that of the process
	Routes func(*Daemon) []admin.Route // nil: there is no socket
}

// serveAdmin opens the admin socket unless it is open. With takePlace the daemon that has it is about to end.
func (d *Daemon) serveAdmin(ctx context.Context, takePlace bool) {
	if d.cfg.Admin.Routes == nil || d.admin.Load() != nil {
		return
	}
	path := admin.Path(d.cfg.SubnetFile)
	if d.cfg.several() {
		path = admin.PathIn(d.cfg.SubnetDir)
	}
	d.admin.Store(admin.Start(ctx, admin.Config{Path: path, Group: d.cfg.Admin.Group, Routes: d.cfg.Admin.Routes(d), Log: d.cfg.Log}, takePlace))
}

// stopAdmin closes the admin socket if it is open. A daemon that takes the place of this one has its own there already.
func (d *Daemon) stopAdmin(ctx context.Context) {
	d.cfg.Captures.Close() // their clients are told, and keep no connection open
	if s := d.admin.Swap(nil); s != nil {
		s.Stop(context.Cause(ctx) == errReplaced)
	}
}

// AdminStats returns what the admin socket has done so far.
func (d *Daemon) AdminStats() status.Admin {
	if s := d.admin.Load(); s != nil {
		return s.Stats()
	}
	return status.Admin{}
}
