package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/netconf"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// newCheckCommand makes `overlayd check`, which only has subcommands.
func newCheckCommand() *cobra.Command {
	check := &cobra.Command{
		Use:   "check",
		Short: "Check files without starting anything",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("want a subcommand: config FILE")
		},
	}
	check.AddCommand(newCheckConfigCommand())
	return check
}

// newCheckConfigCommand makes `overlayd check config`. It needs no store: it checks text.
func newCheckConfigCommand() *cobra.Command {
	var output string
	var host flags.Underlay
	cmd := &cobra.Command{
		Use:   "config FILE",
		Short: "Check a network config and show its effective values",
		Long: `Checks a network config, such as the one in etcd under <prefix>/config or in
net-conf.json; - is standard input. If the config is right, it prints it with every default
filled in, and the dataplanes that can carry it. Otherwise it prints each mistake with line
and column, and exits with 2; -o json prints mistakes as {line, column, key, message}.
An unknown key is a mistake here, while flannel and the daemon ignore it. So is what no host
can carry, such as a VNI that is too long for the name of a device.

With a flag of the underlay, such as --iface eth0, it also says what this host would do
with the config: the address that it would publish, its routes, and why a dataplane could
not carry the network. It exits with 1 if no dataplane could.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("want one file, or - for standard input")
			}
			if output != "table" && output != "json" {
				return usagef("-o %q: want table or json", output)
			}
			text, err := netconf.Read(args[0], cmd.InOrStdin())
			if err != nil {
				return usageError{err}
			}
			onHost, err := host.Complete(cmd.Flags(), os.LookupEnv)
			if err != nil {
				return usageError{err}
			}
			n, problems := netconf.Check(text)
			if len(problems) > 0 {
				if output == "json" {
					return errors.Join(netconf.PrintProblems(cmd.OutOrStdout(), problems), errBadConfig)
				}
				return usageError{netconf.Join(args[0], problems)}
			}
			forecast, err := foresee(cmd.Context(), n, onHost, host.Options())
			if err != nil {
				return err
			}
			if err := netconf.Print(cmd.OutOrStdout(), n, forecast, output); err != nil {
				return err
			}
			return forecast.Err()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	flags.RegisterGroup(cmd.Flags(), "Underlay", host.Register)
	return cmd
}

// errBadConfig is the end of `overlayd check config -o json`, which has printed what is wrong.
var errBadConfig = errors.New("the config is wrong")

// foresee returns what this host would do with a network; nil if nobody asks.
func foresee(ctx context.Context, n control.Network, onHost bool, o underlay.Options) (*fit.Forecast, error) {
	if !onHost {
		return nil, nil
	}
	f, err := fit.Foresee(ctx, n, o)
	return &f, err
}
