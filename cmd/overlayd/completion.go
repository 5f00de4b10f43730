package main

import (
	"context"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completer returns the values of a flag that a shell offers.
type completer func(cmd *cobra.Command) []string

// oneOf offers the only values that there are.
func oneOf(values ...string) completer { return func(*cobra.Command) []string { return values } }

// completers has those of all flags, by name. What the flag does not accept must not be offered.
func completers() map[string]completer {
	return map[string]completer{
		"dataplane":     oneOf(modeAuto, modeKernel, modeUserspace),
		"df":            oneOf("clear", "set"),
		"source-check":  oneOf("strict", "overlay", "inner", "off"),
		"plain-source":  oneOf("drop", "allow"),
		"log-format":    oneOf("text", "json"),
		"metrics-peers": oneOf("on", "top", "off"),
		"to":            oneOf(modeKernel),
		"iface":         interfaceNames,
		"peer":          peerNames,
	}
}

// outputs are the values of -o, which differ by command.
func outputs() map[string]completer {
	return map[string]completer{"status": oneOf("text", "wide", "json"), "doctor": oneOf("text", "json"), "list": oneOf("table", "json"), "config": oneOf("table", "json")}
}

// completeValues has shells complete the values of the flags of a command and of all below it.
func completeValues(cmd *cobra.Command) {
	all := completers()
	if c := outputs()[cmd.Name()]; c != nil {
		all["output"] = c
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		c := all[f.Name]
		if c == nil {
			return
		}
		complete := func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return beginning(c(cmd), begun), cobra.ShellCompDirectiveNoFileComp
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // the flag is there, and this is its only function
	})
	for _, c := range cmd.Commands() {
		completeValues(c)
	}
}

// interfaceNames are those of this host.
func interfaceNames(*cobra.Command) (names []string) {
	all, _ := net.Interfaces() // none is better than an error in the middle of a command line
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// completePeer offers the peers as an argument.
func completePeer(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return beginning(peerNames(cmd), begun), cobra.ShellCompDirectiveNoFileComp
}

// beginning returns the values that begin so.
func beginning(values []string, begun string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !strings.HasPrefix(v, begun) })
}

// plainName are the names that no shell takes for more than text: bash puts what several have in common into the command line as it is.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)

// completionTimeout bounds how long a shell waits for the daemon.
const completionTimeout = time.Second

// peerNames are the names and subnets of the peers that the daemon on this host knows; none if there is no daemon.
func peerNames(cmd *cobra.Command) (names []string) {
	c, err := adminClient(cmd.Flags())
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	list, err := c.Peers(ctx, "")
	if err != nil {
		return nil
	}
	for _, n := range list.Networks {
		for _, p := range n.Peers {
			if plainName.MatchString(p.Name) {
				names = append(names, p.Name)
			}
			names = append(names, p.Subnet.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
