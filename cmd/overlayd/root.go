package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const longHelp = `overlayd joins this host to a VXLAN overlay network that is described in etcd or
in Kubernetes, in flannel's own format: a flanneld and an overlayd can share one cluster.

Every flag may also come from the environment, as OVERLAYD_ETCD_ENDPOINTS or
FLANNELD_ETCD_ENDPOINTS for --etcd-endpoints; a flag wins over OVERLAYD_, and
that over FLANNELD_. Flags take one dash or two.`

const examples = `  # The first host, with an etcd inside overlayd that others join:
  overlayd --etcd-embedded --etcd-listen-client-url http://192.0.2.11:2379 --network 10.5.0.0/16
  # Every other host:
  overlayd --etcd-endpoints http://192.0.2.11:2379
  # In a container without the vxlan module:
  overlayd --dataplane userspace --etcd-endpoints http://192.0.2.11:2379
  # In Kubernetes, for every node:
  kubectl apply -f deploy/kubernetes/overlayd.yml
  # All of it on this machine, to see it work:
  overlayd demo`

func newRootCommand() *cobra.Command {
	o := new(options)
	root := &cobra.Command{
		Use:           "overlayd [flags]",
		Short:         "VXLAN overlay daemon, compatible with flannel, with a kernel and a userspace dataplane",
		Long:          longHelp,
		Example:       examples,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.version {
				fmt.Fprintln(os.Stderr, versionText())
				return nil
			}
			if err := o.complete(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			return runDaemon(cmd.Context(), o)
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	o.register(root.Flags())
	root.Flags().BoolVar(&o.version, "version", false, "print the version to standard error and exit")
	root.SetUsageFunc(usage)
	root.AddCommand(newVersionCommand(), newDrainCommand(), newCleanupCommand(), newCheckCommand(), newLeaseCommand(), newDemoCommand())
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if len(names) == 0 {
		return usagef("%q: %s takes no argument", args[0], cmd.CommandPath())
	}
	return usagef("%q is not a command of %s: the commands are %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
}

// normalizeArgs gives flannel's single-dash long flags (-etcd-endpoints=…) the
// second dash that pflag wants. A word that no flag is named after stays as it is.
func normalizeArgs(root interface{ Flags() *pflag.FlagSet }, args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = a
		if a == "--" {
			copy(out[i:], args[i:])
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(name, "-") && name != "h" && (len(name) > 1 || root.Flags().Lookup(name) != nil) {
			out[i] = "-" + a
		}
	}
	return out
}
