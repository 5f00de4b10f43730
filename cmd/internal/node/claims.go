package node

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// takeDevice claims the device of the session that begins, unless it is the last one's, and removes
// what the last session left and this one does not take over.
func (n *Network) takeDevice(ctx context.Context, c control.Network) error {
	vni := c.Backend.VNI
	if n.device != nil && n.device.VNI != vni {
		n.releaseDevice()
	}
	if n.device == nil {
		if err := n.claimDevice(vni); err != nil {
			return err
		}
		if n.device != nil {
			n.removeTemporary(vni)
		}
	}
	n.claimed.Store(true)
	n.removeEarlier(ctx, c)
	n.useConfig(c)
	return nil
}

// claimDevice claims the device of a VNI. *claim.ServedError: another daemon has it. It is no error if this host cannot make the claim now:
// keepClaim tries again.
func (n *Network) claimDevice(vni uint32) error {
	c, err := n.devices().Claim(vni)
	if errors.As(err, new(*claim.ServedError)) {
		n.noteFiles(func() { n.noClaim = nil })
		return err
	}
	n.noteFiles(func() { n.noClaim = err })
	if err != nil {
		n.warnOnce("cannot claim the overlay device: trying again. Until then another overlayd could serve it too", err)
		return nil
	}
	n.device = c
	n.daemon.claimed.Add(vni)
	return nil
}

// removeTemporary removes the devices that a process which was killed was about to put in the place of others.
func (n *Network) removeTemporary(vni uint32) {
	removed, err := rtnl.RemoveTemporary(vni)
	if err != nil {
		n.log.Warn("cannot remove a device that an overlayd left when it was killed", "err", err)
	}
	if len(removed) > 0 {
		n.log.Info("removed devices that an overlayd left when it was killed", "devices", removed)
	}
}

// releaseDevice gives up the claim of the last session's device.
func (n *Network) releaseDevice() {
	if n.device != nil {
		n.daemon.claimed.Remove(n.device.VNI)
	}
	n.device.Release()
	n.device = nil
}

func (n *Network) devices() claim.Devices { return claim.Beside(n.subnetFile) }

// wroteSubnetFile notes which subnet file is this daemon's work.
func (n *Network) wroteSubnetFile(modified time.Time) {
	_ = n.file.Wrote(modified) // settleFile tries again, and warns
}

// filesPeriod is how often files that could not be written are tried again.
const filesPeriod = 2 * time.Second

// keepFile writes the node file if that was not possible before, or somebody has removed it, until ctx ends.
func (n *Network) keepFile(ctx context.Context) {
	for pace.Sleep(ctx, filesPeriod, nil) {
		n.settleFile()
	}
}

// settleFile writes the node file if that was not possible before, as on a full disk.
func (n *Network) settleFile() {
	err := n.file.Settle()
	switch {
	case err == nil:
	case n.file.IsClaimed():
		n.warnOnce("node file not written: trying again. Until then a daemon that starts, and cleanup, do not know what this one has made", err)
	default:
		n.warnOnce("no node file: trying again. Until then drain, cleanup and --replace cannot see this daemon, and after a crash its address is free only when its record has expired", err)
	}
	n.noteFiles(func() { n.noFile = err })
}

// noteFiles notes for the status why a file cannot be written now, after change has changed that.
func (n *Network) noteFiles(change func()) {
	n.filing.Lock()
	defer n.filing.Unlock()
	change()
	err := cmp.Or(n.noClaim, n.noFile)
	if err == nil {
		n.fileFault.Store(nil)
		return
	}
	f := controller.Fault{Reason: control.Reason(err), Err: err.Error(), Fix: n.fix(err), Since: time.Now()}
	if before := n.fileFault.Load(); before != nil {
		f.Since = before.Since
	}
	n.fileFault.Store(&f)
}

// keepClaim claims the device, if that was not possible before, or somebody has removed the file, until ctx ends.
func (s *Session) keepClaim(ctx context.Context) error {
	for pace.Sleep(ctx, filesPeriod, nil) {
		s.claimAgain()
	}
	return nil
}

func (s *Session) claimAgain() {
	n := s.network
	before := n.device
	if before != nil && !before.IsLost() {
		return
	}
	if err := n.claimDevice(s.config.Backend.VNI); err != nil {
		n.warnOnce("the overlay device is another daemon's too", err)
	}
	if before != n.device {
		before.Release()
	}
}

// news returns which of these are to be logged now.
func (n *Network) news(all ...pace.Notice) (due []pace.Notice) {
	n.noticing.Lock()
	defer n.noticing.Unlock()
	due, _ = n.notices.Due(time.Now(), all...)
	return due
}

// warnOnce logs a fault that is met again and again, such as a full disk, once in ten minutes.
func (n *Network) warnOnce(text string, err error) {
	if due := n.news(pace.Notice{Key: text, Text: err.Error()}); len(due) > 0 {
		n.log.Warn(text, "err", err)
	}
}

// claimAll claims the devices of vnis that are not the session's anyway. It returns the VNIs without those
// that another daemon serves, of which it warns.
func (n *Network) claimAll(vnis []uint32) (mine []uint32, claims []*claim.Device) {
	for _, vni := range vnis {
		if n.device == nil || n.device.VNI != vni {
			c, err := n.devices().Claim(vni)
			if errors.As(err, new(*claim.ServedError)) {
				n.log.Warn("overlay of the last network config is not removed", "err", err)
				continue
			}
			claims = append(claims, c)
		}
		mine = append(mine, vni)
	}
	return mine, claims
}

// rulesPatience bounds how long the end of a daemon waits for the lock of iptables.
const rulesPatience = 3 * time.Second

// removeRules removes the traffic rules of the last session. Devices, routes and entries stay.
func (n *Network) removeRules() {
	vnis, claims := n.claimAll(n.earlier.with(n.left.VNIs))
	defer claim.ReleaseAll(claims)
	if len(vnis) == 0 { // without VNIs Cleanup would mean all
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rulesPatience)
	defer cancel()
	removed, err := leftovers.RemoveRules(ctx, vnis...)
	if err != nil {
		n.log.Error("traffic rules not wholly removed", "err", err, "fix", dataplane.FixOr(err, "overlayd cleanup --rules"))
	}
	if len(removed) > 0 {
		n.log.Info("removed the traffic rules", "removed", removed)
	}
}
