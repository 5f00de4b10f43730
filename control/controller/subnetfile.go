package controller

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

func (f *follower) writeSubnetFile(l control.Lease, mtu int) error {
	n := f.c.cfg.Network
	return f.file.Write(subnetfile.File{Network: n.Network, Subnet: l.Subnet,
		IPv6Network: n.IPv6Network, IPv6Subnet: l.IPv6Subnet, MTU: mtu, IPMasq: f.c.cfg.IPMasq})
}

// restoreSubnetFile writes the subnet file again if somebody removed or changed it.
func (f *follower) restoreSubnetFile(ctx context.Context) {
	restored, err := f.file.Restore()
	f.noteFile(err, func(s *Status) *Fault { return &s.SubnetFileFault })
	if err != nil {
		due, _ := f.fileDue.Due(time.Now(), pace.Notice{Text: printable(err.Error())})
		for _, n := range due {
			f.c.cfg.Log.ErrorContext(ctx, "restore subnet file: trying again", "err", n.Text)
		}
	}
	if restored {
		f.logRestored(ctx)
		f.c.publish(func(s *Status) { s.Stats.FileRepairs++ })
		if tell := f.c.cfg.RestoredSubnetFile; tell != nil {
			tell()
		}
	}
}

// noteFile publishes why a file cannot be written now, if that has changed; nil: it can.
func (f *follower) noteFile(err error, of func(*Status) *Fault) {
	var next Fault
	next.set(err, f.c.cfg.Fix)
	now := *f.c.Status()
	if of(&now).Err != next.Err {
		f.c.publish(func(s *Status) { of(s).set(err, f.c.cfg.Fix) })
	}
}

// logRestored logs each repair of the file, but of those that somebody keeps undoing only that.
func (f *follower) logRestored(ctx context.Context) {
	if !f.fileFights.Repaired(time.Now(), f.file.Path) {
		f.c.cfg.Log.WarnContext(ctx, "subnet file restored: it was removed or changed", "file", f.file.Path)
		return
	}
	due, _ := f.fileDue.Due(time.Now(), pace.Notice{Key: f.file.Path, Text: "fought"})
	for range due {
		f.c.cfg.Log.WarnContext(ctx, "somebody keeps changing the subnet file: restoring it without a line each time", "file", f.file.Path,
			"fix", "find the writer, for example with `inotifywait` or `auditctl -w`, and end it")
	}
}
