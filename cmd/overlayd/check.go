package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/flags"
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
		Long: `Checks a network config such as the one in etcd under <prefix>/config or in
net-conf.json; - is standard input. It prints the config with every default filled in
and the dataplanes that can carry it, or each mistake with its place, and then exits
with 2; -o json prints mistakes as {line, column, key, message}. Unknown keys are mistakes
here, while flannel and the daemon ignore them.

With one of the underlay's flags, such as --iface eth0, it also says what this host would
do with the config: the address that it would publish, its routes, and why a dataplane
could not carry the network. It exits with 1 if none could.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("want one file, or - for standard input")
			}
			if output != "table" && output != "json" {
				return usagef("-o %q: want table or json", output)
			}
			text, err := readConfigFile(args[0], cmd.InOrStdin())
			if err != nil {
				return usageError{err}
			}
			onHost, err := host.Complete(cmd.Flags(), os.LookupEnv)
			if err != nil {
				return usageError{err}
			}
			n, problems := checkConfig(text)
			if len(problems) > 0 {
				return printProblems(cmd.OutOrStdout(), args[0], problems, output)
			}
			forecast, err := foresee(cmd.Context(), n, onHost, host.Options())
			if err != nil {
				return err
			}
			if err := printConfig(cmd.OutOrStdout(), n, forecast, output); err != nil {
				return err
			}
			return forecast.Err()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	flags.RegisterGroup(cmd.Flags(), "Underlay", host.Register)
	return cmd
}

// maxConfigFile bounds how much is read, in bytes: more than a config may have.
const maxConfigFile = 1 << 20

// readConfigFile reads the file, or standard input if its name is -.
func readConfigFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, maxConfigFile))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConfigFile))
}

// configProblem is one mistake in a network config.
type configProblem struct {
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // in bytes, from 1
	Key     string `json:"key"`    // in the file's own spelling, such as Backend.vni; empty if it is about the file as a whole
	Message string `json:"message"`
}

// checkConfig parses a network config.
func checkConfig(text []byte) (n control.Network, problems []configProblem) {
	add := func(offset int64, keys []configKey, err error) {
		p := configProblem{Message: err.Error()}
		p.Line, p.Column = position(text, offset)
		for _, k := range keys {
			if k.offset == offset {
				p.Key = k.path
			}
		}
		problems = append(problems, p)
	}
	keys, err := configKeys(text)
	var at *positionError
	if errors.As(err, &at) {
		add(at.offset, nil, at.err)
		return n, problems
	}
	for _, p := range unknownKeys(keys) {
		add(p.offset, keys, p.err)
	}
	n, err = control.ParseNetwork(text)
	if bad := new(control.NetworkError); errors.As(err, &bad) {
		add(offsetOf(keys, bad.Err.Error()), keys, bad.Err)
	} else if err != nil {
		add(0, nil, err)
	}
	return n, problems
}

// printProblems prints mistakes as JSON, or makes an error of them with a line for each.
func printProblems(w io.Writer, file string, problems []configProblem, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return errors.Join(e.Encode(map[string][]configProblem{"errors": problems}), errBadConfig)
	}
	var errs []error
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s", file, p.Line, p.Column, p.Message))
	}
	return usageError{errors.Join(errs...)}
}

// errBadConfig is the end of `overlayd check config -o json`, which has printed what is wrong.
var errBadConfig = errors.New("the config is wrong")

// effectiveConfig is a network config with every default filled in, in flannel's keys.
type effectiveConfig struct {
	EnableIPv4, EnableIPv6, EnableNFTables bool

	Network       string `json:",omitempty"`
	SubnetLen     int    `json:",omitempty"`
	SubnetMin     string `json:",omitempty"`
	SubnetMax     string `json:",omitempty"`
	IPv6Network   string `json:",omitempty"`
	IPv6SubnetLen int    `json:",omitempty"`
	IPv6SubnetMin string `json:",omitempty"`
	IPv6SubnetMax string `json:",omitempty"`

	Backend effectiveBackend
}

// effectiveBackend has no more than a type if that is not vxlan.
type effectiveBackend struct {
	Type string
	*vxlanBackend
}

type vxlanBackend struct {
	VNI                          uint32
	Port                         uint16
	MTU                          int // 0: that of the underlay interface
	GBP, Learning, DirectRouting bool
}

// effective fills in what n leaves out, so that its JSON shows every value the daemon would use.
func effective(n control.Network) effectiveConfig {
	b := n.Backend
	c := effectiveConfig{EnableIPv4: n.EnableIPv4, EnableIPv6: n.EnableIPv6, EnableNFTables: n.EnableNFTables, Backend: effectiveBackend{Type: b.Type}}
	if b.IsVXLAN() {
		c.Backend.vxlanBackend = &vxlanBackend{b.VNI, b.Port, b.MTU, b.GBP, b.Learning, b.DirectRouting}
	}
	if n.EnableIPv4 {
		c.Network, c.SubnetLen, c.SubnetMin, c.SubnetMax = n.Network.String(), n.SubnetLen, n.SubnetMin.String(), n.SubnetMax.String()
	}
	if n.EnableIPv6 {
		c.IPv6Network, c.IPv6SubnetLen = n.IPv6Network.String(), n.IPv6SubnetLen
		c.IPv6SubnetMin, c.IPv6SubnetMax = n.IPv6SubnetMin.String(), n.IPv6SubnetMax.String()
	}
	return c
}

// dataplanesFor lists the dataplanes that can carry a network; host-gw and alloc use none.
func dataplanesFor(n control.Network) []fit.Mode {
	if !n.Backend.IsVXLAN() {
		return []fit.Mode{}
	}
	if n.Backend.GBP || n.Backend.Learning {
		return []fit.Mode{fit.Kernel}
	}
	return []fit.Mode{fit.Kernel, fit.Userspace}
}

// foresee returns what this host would do with a network; nil if nobody asks.
func foresee(ctx context.Context, n control.Network, onHost bool, o underlay.Options) (*fit.Forecast, error) {
	if !onHost {
		return nil, nil
	}
	f, err := fit.Foresee(ctx, n, o)
	return &f, err
}

// printConfig prints a config as a table, or as JSON with the dataplanes that can carry it, and what
// this host would do unless forecast is nil.
func printConfig(w io.Writer, n control.Network, forecast *fit.Forecast, output string) error {
	c := effective(n)
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			effectiveConfig
			Dataplanes []fit.Mode
			Host       *fit.Forecast `json:",omitempty"`
		}{c, dataplanesFor(n), forecast})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key string, value any) { fmt.Fprintf(t, "%s\t%v\n", key, value) }
	row("EnableIPv4", c.EnableIPv4)
	row("EnableIPv6", c.EnableIPv6)
	row("EnableNFTables", c.EnableNFTables)
	if n.EnableIPv4 {
		row("Network", c.Network)
		row("SubnetLen", c.SubnetLen)
		row("SubnetMin", c.SubnetMin)
		row("SubnetMax", c.SubnetMax)
	}
	if n.EnableIPv6 {
		row("IPv6Network", c.IPv6Network)
		row("IPv6SubnetLen", c.IPv6SubnetLen)
		row("IPv6SubnetMin", c.IPv6SubnetMin)
		row("IPv6SubnetMax", c.IPv6SubnetMax)
	}
	row("Backend.Type", c.Backend.Type)
	if b := c.Backend.vxlanBackend; b != nil {
		row("Backend.VNI", b.VNI)
		row("Backend.Port", b.Port)
		row("Backend.MTU", orUnderlays(b.MTU))
		row("Backend.GBP", b.GBP)
		row("Backend.Learning", b.Learning)
		row("Backend.DirectRouting", b.DirectRouting)
	}
	row("dataplanes", fmt.Sprint(dataplanesFor(n)))
	if forecast != nil {
		row("interface", forecast.Interface)
		row("public IPs", fmt.Sprint(forecast.PublicIPs))
		for _, d := range forecast.Dataplanes {
			row(string(d.Dataplane), d)
		}
		for _, need := range forecast.Underlay {
			row("of the underlay", need)
		}
	}
	if n.Backend.Missing {
		row("warning", `without a Backend flanneld runs udp, which cannot reach overlayd: write "Backend": {"Type": "vxlan"}`)
	}
	return t.Flush()
}

// orUnderlays is an MTU as text; 0 means that the daemon takes the interface's.
func orUnderlays(mtu int) string {
	if mtu == 0 {
		return "that of the underlay interface"
	}
	return fmt.Sprint(mtu)
}
