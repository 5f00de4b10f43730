package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/netconf"
)

const longHelp = `overlayd joins this host to a VXLAN overlay network that is described in etcd or
in Kubernetes, in flannel's own format: flanneld and overlayd can share one cluster.

Every flag can also come from the environment: --etcd-endpoints from
OVERLAYD_ETCD_ENDPOINTS or FLANNELD_ETCD_ENDPOINTS. A flag wins over OVERLAYD_, and
OVERLAYD_ over FLANNELD_. Flags take one dash or two.`

const examples = `  # The first host, with an etcd of its own that others join:
  overlayd pki init
  overlayd --etcd-embedded --etcd-listen-client-url https://192.0.2.11:2379 --network 10.5.0.0/16
  # Every other host, with a file from overlayd pki join-file on the first host:
  overlayd --etcd-endpoints https://192.0.2.11:2379 --join-file /etc/overlayd.pem
  # With an etcd that runs already, in a container without the vxlan module:
  overlayd --dataplane userspace --etcd-endpoints http://192.0.2.11:2379
  # In Kubernetes, for every node:
  kubectl apply -f deploy/kubernetes/overlayd.yml
  # All of it on this machine, to see it work:
  overlayd demo
  # Does it work, and if not, what to do?
  overlayd status
  # Which packets it drops, and why:
  overlayd trace --drops
  # Complete commands, flags and their values:
  source <(overlayd completion bash)`

// newRootCommand makes the command that is the daemon itself, with all subcommands.
func newRootCommand() *cobra.Command {
	o := new(flags.Flags)
	root := &cobra.Command{
		Use:           "overlayd [flags]",
		Short:         "VXLAN overlay daemon, compatible with flannel, with a kernel and a userspace dataplane",
		Long:          longHelp,
		Example:       examples,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Process.Version {
				fmt.Fprintln(os.Stderr, versionText())
				return nil
			}
			if err := o.Complete(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			o.Warnings = append(o.Warnings, flags.Misspelt(cmd.Flags(), os.Environ(), netconf.Nearest)...)
			return runDaemon(cmd.Context(), o, cmd.Flags())
		},
	}
	root.SetFlagErrorFunc(flagError)
	o.Register(root.Flags())
	root.Flags().BoolVar(&o.Process.Version, "version", false, "print the version to standard error and exit")
	root.SetUsageFunc(usage)
	root.AddCommand(newVersionCommand(), newStatusCommand(), newDoctorCommand(), newPingCommand(), newCaptureCommand(), newTraceCommand(), newGuardCommand(), newDrainCommand(), newCleanupCommand(), newCheckCommand(), newLeaseCommand(), newPKICommand(), newCNICommand(), newDemoCommand(), newEtcdCommand())
	root.AddCommand(moreCommands()...)
	completeValues(root)
	return root
}

// noArgs refuses arguments. If the command has subcommands, the argument was meant to be one.
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
	if switched := switchBefore(cmd.Flags(), args[0]); switched != "" {
		return usagef("%q belongs to no flag: a flag that is true or false has its value behind =, so write --%s=%s", args[0], switched, args[0])
	}
	meant := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		meant = fmt.Sprintf(": do you mean %q?", near[0])
	}
	return usagef("%q is not a command of %s%s The commands are %s", args[0], cmd.CommandPath(), cmp.Or(meant, "."), strings.Join(names, ", "))
}

// checkOwn has the commands that cobra adds, help and completion, refuse words that name no command, as all others do.
func checkOwn(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.Args = noArgs
		completion.RunE = func(*cobra.Command, []string) error {
			return usagef("want a subcommand: bash, zsh, fish or powershell")
		}
	}
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = helpArgs
	}
}

// helpArgs refuses words that name no command.
func helpArgs(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err != nil {
		return usageError{err}
	}
	return noArgs(cmd, rest)
}

// switchBefore returns a flag that a word was meant for, if the word is true or false: that flag takes no word.
func switchBefore(f *pflag.FlagSet, word string) (name string) {
	if word != "true" && word != "false" {
		return ""
	}
	f.Visit(func(flag *pflag.Flag) {
		if flag.Value.Type() == "bool" && name == "" {
			name = flag.Name
		}
	})
	return name
}

// flagError returns an error of the command line as it may be shown. For a flag that there is not it names the one that
// was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	if unknown := new(pflag.NotExistError); errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := netconf.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return usagef("%w: do you mean --%s?", err, near)
		}
	}
	return usageError{flags.Readable(err)}
}
