package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/doctor"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

const longDoctor = `Checks this host for what keeps the overlay from working, and says what to do: underlay, rights,
dataplanes, store, certificates, lease, device, MAC, MTU, UDP port, firewalls, forwarding, rp_filter,
routes, pods, peers. It changes nothing. It works without a daemon: it then says what keeps one from
starting, and checks that need one are unknown. Run it as root.

Each line is one check: its state (ok, unknown, warn or fail), its id, and what was found.
docs/troubleshooting.md explains each check.

Exit codes: 0 no check fails, 1 a check fails, 2 a wrong flag.`

// newDoctorCommand makes `overlayd doctor`.
func newDoctorCommand() *cobra.Command {
	var output, peer string
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check this host for what keeps the overlay from working, and say what to do",
		Long:  longDoctor,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usagef("-o %q: want text or json", output)
			}
			c, err := adminClient(cmd.Flags())
			if err != nil {
				return err
			}
			s := doctor.Scene{Files: subnetFiles(cmd.Flags()), Peer: peer}
			d, err := c.Status(cmd.Context())
			if err == nil {
				s.Daemon = &d
			}
			s.Absent = err
			if errors.Is(err, admin.ErrNoRight) {
				return err
			}
			found := doctor.Run(s)
			if peer != "" && s.Daemon != nil && !slices.ContainsFunc(found, func(r doctor.Result) bool { return r.ID == "peers" }) {
				return unknownPeer("--peer ", peer)
			}
			if err := doctor.Print(cmd.OutOrStdout(), found, output); err != nil {
				return err
			}
			if doctor.Fails(found) {
				return errUnwell
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.StringVar(&peer, "peer", "", "look at one peer: its name, subnet, VTEP or an address in its subnet")
	registerAdmin(f)
	return cmd
}

// subnetFiles are the subnet files that the flags of adminClient mean.
func subnetFiles(f *pflag.FlagSet) []string {
	one, dir := f.Lookup("subnet-file").Value.String(), f.Lookup("subnet-dir").Value.String()
	if admin.Listens(admin.PathIn(dir)) && !admin.Listens(admin.Path(one)) || f.Changed("subnet-dir") && !f.Changed("subnet-file") {
		return nodefile.SubnetFilesIn(dir)
	}
	return []string{one}
}
