package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Cleanup removes what overlayd has left on this host.
type Cleanup struct {
	VNIs        []uint32 // of the overlays; empty: all of them
	SubnetFiles []string // they go too; those of overlays in VNIs tell which routes are theirs
}

// SubnetFilesIn finds the subnet files of a daemon that serves several networks, by the node
// files beside them.
func SubnetFilesIn(dir string) (files []string) {
	found, _ := filepath.Glob(filepath.Join(dir, "*.env"+nodeSuffix)) // the pattern is well-formed
	for _, f := range found {
		files = append(files, f[:len(f)-len(nodeSuffix)])
	}
	return files
}

// Run removes everything it can, even if it returns an error, and reports what. It refuses what
// a daemon serves, because that would be back at once.
func (c Cleanup) Run(ctx context.Context, removed func(what string)) error {
	claims := map[string]*nodeFile{}
	defer func() {
		for _, c := range claims {
			c.release()
		}
	}()
	for _, file := range c.SubnetFiles {
		claim, err := claimNode(file)
		if errors.As(err, new(*RunningError)) {
			return err
		}
		claims[file] = claim // nil if it cannot be made, and so by no daemon either
	}
	// From here on no daemon can begin to serve what is being removed.
	devices, err := c.claimDevices()
	defer releaseAll(devices)
	if err != nil {
		return err
	}
	gone, err := c.remove(ctx)
	for _, what := range gone {
		removed(what)
	}
	for file, claim := range claims {
		switch rerr := os.Remove(file); {
		case rerr == nil:
			removed(file)
		case !errors.Is(rerr, os.ErrNotExist):
			err = errors.Join(err, rerr)
		}
		if claim != nil {
			err = errors.Join(err, claim.remove())
		}
	}
	if len(c.VNIs) == 0 {
		err = errors.Join(err, c.devices().forget())
	}
	return err
}

// devices are the claims of daemons with any of these subnet files.
func (c Cleanup) devices() devices {
	d := devices{[]string{claimDir}}
	for _, file := range c.SubnetFiles {
		d.dirs = append(d.dirs, devicesBeside(file).dirs[1:]...)
	}
	return d
}

// remove removes the overlays of c.VNIs, or everything, and returns what it removed.
func (c Cleanup) remove(ctx context.Context) ([]string, error) {
	if len(c.VNIs) == 0 {
		return removeAll(ctx)
	}
	l := leftovers{vnis: c.VNIs}
	for _, file := range c.SubnetFiles {
		l.networks = append(l.networks, networksIn(file)...)
	}
	return l.remove(ctx)
}

// claimDevices claims the devices of c.VNIs; if these are all, it refuses if any is served.
func (c Cleanup) claimDevices() (claims []*deviceClaim, err error) {
	d := c.devices()
	if len(c.VNIs) == 0 {
		served, err := d.served()
		if err != nil || len(served) > 0 {
			err = errors.Join(err, fmt.Errorf("overlayd is running in this network namespace and serves %v: stop it first", served))
		}
		return nil, err
	}
	for _, vni := range c.VNIs {
		claim, err := d.claim(vni)
		if err != nil && !errors.Is(err, errNoClaimDir) {
			return claims, err
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// networksIn returns the overlay networks that a subnet file names.
func networksIn(subnetFile string) (networks []netip.Prefix) {
	f, err := os.Open(subnetFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), "=")
		if key != "FLANNEL_NETWORK" && key != "FLANNEL_IPV6_NETWORK" {
			continue
		}
		if p, err := netip.ParsePrefix(value); err == nil {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}
