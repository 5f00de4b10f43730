// Package leftovers removes what overlays have left on this host: for a session that has another config
// than the last one ([Remove]), and for the user ([Cleanup]).
//
// A device keeps overlayd's alias after a flanneld has taken it over. Therefore both look for what overlayd
// never makes (others.go): routes of other protocols, flannel's rules, a running flanneld, a subnet file that
// another has written. From such a device they remove only what overlayd alone needs (leave.go).
package leftovers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Cleanup removes what overlayd has left on this host. What somebody else has made its own, such as a
// flanneld that was started in its place, stays.
type Cleanup struct {
	VNIs        []uint32 // of the overlays; empty: all of them
	SubnetFiles []string // they go too; those of overlays in VNIs tell which routes are theirs
	RulesOnly   bool     // remove traffic rules and nothing else
}

// Run removes everything it can, even if it returns an error, and reports what it removed and kept, a line
// each. It refuses what a daemon serves, because that would be back at once.
func (c Cleanup) Run(ctx context.Context, say func(line string)) error {
	c.SubnetFiles = slices.Compact(slices.Sorted(slices.Values(c.SubnetFiles))) // its own claim would be in the way of the second
	claims := map[string]*nodefile.File{}
	defer func() {
		for _, c := range claims {
			c.Release()
		}
	}()
	for _, file := range c.SubnetFiles {
		claim, err := nodefile.Claim(file)
		if errors.As(err, new(*nodefile.RunningError)) {
			return dataplane.WithFix(err, "stop it first")
		}
		claims[file] = claim // nil if it cannot be made: then no daemon can make it either
	}
	// From here on no daemon can begin to serve what is being removed.
	devices, err := c.claimDevices()
	defer claim.ReleaseAll(devices)
	if err != nil {
		return err
	}
	var done report
	if c.RulesOnly {
		done.removed, err = RemoveRules(ctx, c.VNIs...)
		err = errors.Join(err, removeNew(claims))
	} else {
		done, err = c.remove(ctx, claims)
	}
	for _, what := range done.removed {
		say("removed " + what)
	}
	for _, what := range done.keptLines() {
		say("kept " + what)
	}
	for _, what := range done.missed {
		say(what)
	}
	return err
}

// remove removes the overlays and their files.
func (c Cleanup) remove(ctx context.Context, claims map[string]*nodefile.File) (done report, err error) {
	o, err := findOthers(c.SubnetFiles, claims)
	if err != nil {
		return done, err
	}
	if done, err = c.removeOverlays(ctx, o); err != nil {
		err = fmt.Errorf("clean up: %w", err)
	}
	for _, file := range c.SubnetFiles {
		err = errors.Join(err, removeFile(file, o.keeps(file, done.addrs), &done))
		if claims[file] != nil {
			os.Remove(handover.Path(file)) // of a daemon that was killed; usually it has gone
			err = errors.Join(err, admin.RemoveDead(admin.Path(file)), admin.RemoveDead(admin.PathIn(filepath.Dir(file))))
			err = errors.Join(err, claims[file].Remove())
		}
		if lerr := os.Remove(controller.LeasesFile(file)); !errors.Is(lerr, os.ErrNotExist) {
			err = errors.Join(err, lerr)
		}
	}
	if len(c.VNIs) == 0 {
		err = errors.Join(err, c.devices().Forget())
	}
	return done, err
}

// removeFile removes a subnet file unless there is a reason to keep it.
func removeFile(file, why string, done *report) error {
	if why != "" {
		done.kept = append(done.kept, file+": "+why)
		return nil
	}
	switch err := os.Remove(file); {
	case err == nil:
		done.removed = append(done.removed, file)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return nil
}

// removeNew removes the node files that were made for the claims only.
func removeNew(claims map[string]*nodefile.File) (err error) {
	for _, c := range claims {
		if c != nil && c.IsNew {
			err = errors.Join(err, c.Remove())
		}
	}
	return err
}

// devices are the claims of daemons with any of these subnet files.
func (c Cleanup) devices() claim.Devices {
	d := claim.Devices{Dirs: []string{claim.Dir}}
	for _, file := range c.SubnetFiles {
		d.Dirs = append(d.Dirs, claim.Beside(file).Dirs[1:]...)
	}
	return d
}

// removeOverlays removes the overlays of c.VNIs, or all of them, except what o says that others use.
func (c Cleanup) removeOverlays(ctx context.Context, o others) (report, error) {
	if len(c.VNIs) == 0 {
		return removeAll(ctx, o)
	}
	l := nodefile.Left{VNIs: c.VNIs}
	for _, file := range c.SubnetFiles {
		l.Networks = append(l.Networks, networksIn(file)...)
	}
	done, err := removeLeft(ctx, l, o)
	guards, gerr := RemoveGuards(l.VNIs...) // after the devices, as in removeAll
	done.removed = append(done.removed, guards...)
	return done, errors.Join(err, gerr)
}

// claimDevices claims the devices of c.VNIs; if these are all, it refuses if any is served.
func (c Cleanup) claimDevices() (claims []*claim.Device, err error) {
	d := c.devices()
	if len(c.VNIs) == 0 {
		served, err := d.Served()
		if err == nil && len(served) > 0 {
			err = servedError(served...)
		}
		return nil, err
	}
	for _, vni := range c.VNIs {
		c, err := d.Claim(vni)
		if errors.As(err, new(*claim.ServedError)) {
			err = servedError(dataplane.DeviceName(vni))
		}
		if err != nil && !errors.Is(err, claim.ErrNoDir) {
			return claims, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// servedError says that a daemon serves devices that are to be removed.
func servedError(devices ...string) error {
	return fmt.Errorf("overlayd is running in this network namespace and serves %s: stop it first", strings.Join(devices, ", "))
}

// networksIn returns the overlay networks that a subnet file names.
func networksIn(subnetFile string) (networks []netip.Prefix) {
	eachAssignment(subnetFile, func(key, value string) {
		if key != "FLANNEL_NETWORK" && key != "FLANNEL_IPV6_NETWORK" {
			return
		}
		if p, err := netip.ParsePrefix(value); err == nil {
			networks = append(networks, p.Masked())
		}
	})
	return networks
}

// mtuIn returns the MTU that a subnet file names; 0: none.
func mtuIn(subnetFile string) (mtu int) {
	eachAssignment(subnetFile, func(key, value string) {
		if key == "FLANNEL_MTU" {
			mtu, _ = strconv.Atoi(value) // 0: none
		}
	})
	return mtu
}

// maxSubnetFile bounds how much is read of a subnet file, in bytes. None is that long.
const maxSubnetFile = 64 << 10

func eachAssignment(subnetFile string, do func(key, value string)) {
	f, err := hostfile.Open(subnetFile)
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(io.LimitReader(f, maxSubnetFile)); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), "=")
		do(key, value)
	}
}
