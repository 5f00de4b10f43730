package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/leases"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/stores"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// leaseTimeout bounds a lease command.
const leaseTimeout = 30 * time.Second

const longLease = `Shows and changes the leases of all nodes in etcd. It is safe while the daemons run.
SUBNET is a subnet such as 10.5.34.0/24, or the key of an entry as list -o json prints it,
in quotes. If several entries have a subnet, only a key says which of them is meant.
In Kubernetes there is nothing to change: a node's subnet is its podCIDR.

Without --etcd-endpoints root uses the etcd flags of the daemon on this host that has the
same --subnet-file. Flags given here override them. If these cannot be read, the commands
do nothing. If that daemon serves several networks, choose one by its --subnet-file, or
by the prefix of its keys: --etcd-prefix P/NETWORK.`

// newLeaseCommand makes `overlayd lease`, which only has subcommands.
func newLeaseCommand() *cobra.Command {
	lease := &cobra.Command{
		Use:   "lease",
		Short: "Show, reserve and revoke subnets in etcd",
		Long:  longLease,
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("want a subcommand: list, reserve, release or revoke")
		},
	}
	lease.AddCommand(newLeaseListCommand(), newLeaseReserveCommand(), newLeaseReleaseCommand(), newLeaseRevokeCommand())
	return lease
}

// leaseCommand completes a subcommand: it has the flags of etcd, or takes those of the daemon on this
// host, and runs do on an open store.
func leaseCommand(cmd *cobra.Command, do func(ctx context.Context, s *etcd.Store, args []string) error) *cobra.Command {
	o := &leases.Flags{Etcd: new(flags.Etcd)}
	flags.RegisterGroup(cmd.Flags(), "etcd", o.Etcd.Register)
	cmd.Flags().StringVar(&o.SubnetFile, "subnet-file", flags.DefaultSubnetFile, "subnet file of the daemon on this host")
	for _, name := range []string{"etcd-data-dir", "pki-dir", "etcd-embedded-insecure", "subnet-lease-renew-margin"} {
		cmd.Flags().Lookup(name).Hidden = true // read from the environment with the others, and not used
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		log := new(flags.Process).Logger(slog.LevelInfo)
		if err := o.Complete(cmd.Flags()); errors.Is(err, nodefile.ErrTwoDaemons) || errors.Is(err, leases.ErrUnknown) {
			return err
		} else if err != nil {
			return usageError{err}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), leaseTimeout)
		defer cancel()
		s, err := stores.OpenEtcd(ctx, o.Etcd, "", log)
		if err != nil {
			return usageError{err}
		}
		defer s.Close()
		return do(ctx, s, args)
	}
	return cmd
}

// newLeaseListCommand makes `overlayd lease list`.
func newLeaseListCommand() *cobra.Command {
	var output string
	var cmd *cobra.Command
	cmd = leaseCommand(&cobra.Command{
		Use:   "list",
		Short: "List leases, reservations and invalid entries",
		Long: `Lists every entry below <prefix>/subnets/: when it expires unless it is renewed, what nodes do with
it (used, refused or reserved), and whether its node gives signs of life (a flanneld never does). Leases
that are refused and entries that cannot be read come last, each with the reason that nodes log.`,
	}, func(ctx context.Context, s *etcd.Store, args []string) error {
		switch {
		case len(args) > 0:
			return usagef("%q: %s takes no argument", args[0], cmd.CommandPath())
		case output != "table" && output != "json":
			return usagef("-o %q: want table or json", output)
		}
		entries, err := s.Entries(ctx)
		if err != nil {
			return err
		}
		if output == "json" {
			return leases.PrintJSON(cmd.OutOrStdout(), entries)
		}
		return leases.Print(cmd.OutOrStdout(), entries)
	})
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// newLeaseReserveCommand makes `overlayd lease reserve`; etcd.Store.Reserve refuses what does not fit.
func newLeaseReserveCommand() *cobra.Command {
	var public, public6 string
	var cmd *cobra.Command
	cmd = leaseCommand(&cobra.Command{
		Use:   "reserve SUBNET --public-ip IP",
		Short: "Reserve a subnet for the node that has a public IP",
		Long: `Reserves a subnet for the node that publishes the given address: nobody else gets it,
and it never expires. The node takes it when it next acquires a lease, for example at its
start; a subnet that it already has becomes a reservation at once. In a network with both
families give one of each: 10.5.34.0/24,fd10:5:0:34::/64. Refused if the network config
has no such subnets, or another entry overlaps one.`,
	}, func(ctx context.Context, s *etcd.Store, args []string) error {
		l, err := leases.ParseReservation(args, public, public6)
		if err != nil {
			return usageError{err}
		}
		if err := s.Reserve(ctx, l); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "reserved %s for %s\n", leases.Subnets(l), leases.PublicIPs(l))
		return nil
	})
	cmd.Flags().StringVar(&public, "public-ip", "", "IPv4 address that the node publishes")
	cmd.Flags().StringVar(&public6, "public-ipv6", "", "IPv6 address that the node publishes; enough for one without IPv4")
	return cmd
}

// newLeaseReleaseCommand makes `overlayd lease release`, the reverse of reserve.
func newLeaseReleaseCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = leaseCommand(&cobra.Command{
		Use:   "release SUBNET",
		Short: "End the reservation of a subnet",
		Long: `Ends a reservation. If its node is alive and has taken the subnet, the node keeps it as a
lease, which expires unless it is renewed. Otherwise the subnet is free at once.`,
	}, func(ctx context.Context, s *etcd.Store, args []string) error {
		if len(args) != 1 {
			return usagef("want one argument: SUBNET")
		}
		l, deleted, err := s.Unreserve(ctx, args[0])
		if err != nil {
			return err
		}
		what := "the subnet is free"
		if !deleted {
			what = leases.PublicIPs(l) + " keeps it as a lease"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "reservation of %s ended: %s\n", leases.Subnets(l), what)
		return nil
	})
	return cmd
}

// newLeaseRevokeCommand makes `overlayd lease revoke`. It asks nothing: the entry is gone at once.
func newLeaseRevokeCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = leaseCommand(&cobra.Command{
		Use:   "revoke SUBNET",
		Short: "Take a subnet away from its node",
		Long: `Deletes the entry of a subnet: a lease, even if its node is alive, a reservation, or an
invalid entry. An overlayd that has the lease withdraws the subnet and acquires another at
once; its pods need new addresses. It does not get this subnet again within a day unless
that is reserved for it; any other node may. A flanneld ends when its lease is revoked,
and takes the same subnet when it is started again.`,
	}, func(ctx context.Context, s *etcd.Store, args []string) error {
		if len(args) != 1 {
			return usagef("want one argument: SUBNET")
		}
		key, err := s.Revoke(ctx, args[0])
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "revoked %s\n", leases.Shown(control.CIDRsOf(key)))
		}
		return err
	})
	return cmd
}
