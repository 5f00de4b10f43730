package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is the annotation that names a flag's group in --help.
const flagGroup = "overlayd_group"

// registerGroup notes which flags register adds, so that --help shows them under title.
func registerGroup(f *pflag.FlagSet, title string, register func(*pflag.FlagSet)) {
	group := pflag.NewFlagSet(title, pflag.ContinueOnError)
	group.SortFlags = false
	register(group)
	group.VisitAll(func(flag *pflag.Flag) {
		flag.Annotations = map[string][]string{flagGroup: {title}}
	})
	f.AddFlagSet(group)
}

// usage is a command's --help below its description, with its flags in groups.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if commands := slices.DeleteFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Hidden || !c.IsAvailableCommand() }); len(commands) > 0 {
		fmt.Fprintf(&b, "\nCommands:\n")
		for _, c := range commands {
			fmt.Fprintf(&b, "  %-10s %s\n", c.Name(), c.Short)
		}
	}
	for _, g := range groupsOf(cmd.Flags()) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(helpWidth))
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), b.String())
	return err
}

// helpWidth is in characters.
const helpWidth = 120

type usageGroup struct {
	title string
	flags *pflag.FlagSet
}

// groupsOf sorts flags into their groups, those without one last.
func groupsOf(f *pflag.FlagSet) (groups []usageGroup) {
	rest := usageGroup{"Flags", newGroupSet()}
	f.VisitAll(func(flag *pflag.Flag) {
		title := flag.Annotations[flagGroup]
		if len(title) == 0 {
			rest.flags.AddFlag(flag)
			return
		}
		i := slices.IndexFunc(groups, func(g usageGroup) bool { return g.title == title[0] })
		if i < 0 {
			i = len(groups)
			groups = append(groups, usageGroup{title[0], newGroupSet()})
		}
		groups[i].flags.AddFlag(flag)
	})
	return append(groups, rest)
}

func newGroupSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	return f
}
