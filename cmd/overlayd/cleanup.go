package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// newCleanupCommand makes `overlayd cleanup`. It needs no store: it only looks at this host.
func newCleanupCommand() *cobra.Command {
	var subnetFile, subnetDir string
	var vnis []uint
	var rules bool
	cmd := &cobra.Command{
		Use:   "cleanup [flags]",
		Short: "Remove devices, routes, rules and files in /run of overlayd",
		Long: `Removes what overlayd has set up in this network namespace: overlay devices, routes,
nexthops, neighbours, FDB entries and traffic rules, and the subnet file and the files
in --subnet-dir.

With --vni it removes only what belongs to those networks, and the subnet file that
--subnet-file names; by that file it knows their direct and blackhole routes.
With --rules it removes only traffic rules.

It keeps a device or subnet file that flanneld has taken over, with the routes to its
peers, and says so. It keeps the lease until that expires (see overlayd drain), the data
directory of an embedded etcd, which belongs to the cluster, /etc/overlayd, and what
overlayd cni install has installed. Running it twice is not an error.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := flags.Given(cmd.Flags(), os.LookupEnv, "subnet-file")
			if err := flags.ApplyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			if subnetFile == "" {
				return usagef("--subnet-file: \"\": want a path")
			}
			c := leftovers.Cleanup{SubnetFiles: []string{subnetFile}, RulesOnly: rules}
			for _, v := range vnis {
				if v >= 1<<24 {
					return usagef("--vni: %d: want 0 to 16777215", v)
				}
				c.VNIs = append(c.VNIs, uint32(v))
			}
			if len(vnis) == 0 {
				c.SubnetFiles = append(c.SubnetFiles, nodefile.SubnetFilesIn(subnetDir)...)
			} else if !given {
				c.SubnetFiles = nil
			}
			return c.Run(cmd.Context(), func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) })
		},
	}
	cmd.Flags().StringVar(&subnetFile, "subnet-file", flags.DefaultSubnetFile, "subnet file of the daemon")
	cmd.Flags().StringVar(&subnetDir, "subnet-dir", flags.DefaultSubnetDir, "directory of the subnet files of several networks")
	cmd.Flags().UintSliceVar(&vnis, "vni", nil, "only the networks with these VNIs, comma-separated")
	cmd.Flags().BoolVar(&rules, "rules", false, "only the traffic rules")
	cmd.Flags().Lookup("vni").DefValue = "" // not to be shown as []
	return cmd
}
