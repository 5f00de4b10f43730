package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// cleanupScope is what a cleanup removes.
type cleanupScope struct {
	vnis        []uint32 // of the overlays; none: all of them
	subnetFiles []string // they go, too; those of overlays in vnis say which routes are theirs
}

func newCleanupCommand() *cobra.Command {
	o := new(networkOptions)
	var vnis []uint
	cmd := &cobra.Command{
		Use:   "cleanup [flags]",
		Short: "Remove everything of overlayd from this host: devices, routes, rules, subnet files",
		Long: `Removes the overlay devices, routes, nexthops, neighbours, FDB entries and traffic
rules that overlayd made in this network namespace, and the subnet file with those
of --subnet-dir. With --vni it removes those of some networks only, and the file that
--subnet-file names, which also says which direct and blackhole routes are theirs.
Doing it twice is no error. The lease stays until it expires (see overlayd drain), and so
does the data directory of an embedded etcd, which belongs to the cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed("subnet-file") || fromEnv(os.LookupEnv, "subnet-file")
			if err := applyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			if o.subnetFile == "" {
				return usagef("--subnet-file: \"\": want a path")
			}
			scope := cleanupScope{subnetFiles: []string{o.subnetFile}}
			for _, v := range vnis {
				if v < 1 || v >= 1<<24 {
					return usagef("--vni: %d: want 1 to 16777215", v)
				}
				scope.vnis = append(scope.vnis, uint32(v))
			}
			if len(vnis) == 0 {
				scope.subnetFiles = append(scope.subnetFiles, subnetFilesIn(o.subnetDir)...)
			} else if !given {
				scope.subnetFiles = nil
			}
			return scope.cleanup(cmd.Context(), func(what string) { fmt.Fprintln(cmd.OutOrStdout(), "removed", what) })
		},
	}
	cmd.Flags().StringVar(&o.subnetFile, "subnet-file", defaultSubnetFile, "subnet file of the daemon")
	cmd.Flags().StringVar(&o.subnetDir, "subnet-dir", defaultSubnetDir, "directory of the subnet files of several networks")
	cmd.Flags().UintSliceVar(&vnis, "vni", nil, "only the networks with these VNIs, comma-separated")
	cmd.Flags().Lookup("vni").DefValue = "" // not to be shown as []
	return cmd
}

// subnetFilesIn finds the subnet files of a daemon that serves several networks, by the node
// files beside them.
func subnetFilesIn(dir string) (files []string) {
	found, _ := filepath.Glob(filepath.Join(dir, "*.env"+nodeSuffix)) // the pattern is well-formed
	for _, f := range found {
		files = append(files, f[:len(f)-len(nodeSuffix)])
	}
	return files
}

// cleanup removes all it can, even where it returns an error, and says what. It refuses
// what a daemon serves, for that would be back at once.
func (s cleanupScope) cleanup(ctx context.Context, removed func(what string)) error {
	claims := map[string]*nodeFile{}
	defer func() {
		for _, c := range claims {
			c.release()
		}
	}()
	for _, file := range s.subnetFiles {
		claim, err := claimNode(file)
		if other := new(runningError); errors.As(err, &other) {
			return fmt.Errorf("overlayd (pid %d) is running with --subnet-file %s: stop it first", other.pid, file)
		}
		claims[file] = claim // nil where it cannot be made, and so by no daemon either
	}
	// From here on no daemon can begin to serve what is being removed.
	devices, err := s.claimDevices()
	defer devices.release()
	if err != nil {
		return err
	}
	gone, err := s.remove(ctx)
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
	return err
}

func (s cleanupScope) remove(ctx context.Context) ([]string, error) {
	if len(s.vnis) == 0 {
		return removeAll(ctx)
	}
	t := traces{vnis: s.vnis}
	for _, file := range s.subnetFiles {
		t.networks = append(t.networks, networksIn(file)...)
	}
	return t.remove(ctx)
}

// claimDevices claims the devices of s.vnis; for all of them it says which are served.
func (s cleanupScope) claimDevices() (claims deviceClaims, err error) {
	if len(s.vnis) == 0 {
		served, err := servedDevices()
		if err != nil || len(served) > 0 {
			err = errors.Join(err, fmt.Errorf("overlayd is running in this network namespace and serves %v: stop it first", served))
		}
		return nil, err
	}
	for _, vni := range s.vnis {
		c, err := claimDevice(vni)
		if err != nil {
			return claims, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}
