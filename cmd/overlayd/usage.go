package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// usage prints a command's --help below its description, with its flags in groups.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if commands := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return c.Hidden || !c.IsAvailableCommand() }); len(commands) > 0 {
		fmt.Fprintf(&b, "\nCommands:\n")
		for _, c := range commands {
			fmt.Fprintf(&b, "  %-10s %s\n", c.Name(), c.Short)
		}
	}
	for _, g := range flags.Groups(cmd.Flags()) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.Title, g.Flags.FlagUsagesWrapped(helpWidth))
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), b.String())
	return err
}

// helpWidth is in characters.
const helpWidth = 120
