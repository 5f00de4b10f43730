//go:build manual

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/manual"
)

// moreCommands are those that `go run -tags manual ./cmd/overlayd` has besides: `make packages` and `make docs` write the manual with
// it. The daemon that is shipped does not link what it takes.
func moreCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:    "manual DIR",
		Short:  "Write man pages, completions and Markdown to DIR/man, DIR/completions and DIR/cli",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			date, err := sourceDate()
			if err != nil {
				return usageError{err}
			}
			dir := args[0]
			if err := manual.Man(newRootCommand(), filepath.Join(dir, "man"), version, date); err != nil {
				return err
			}
			if err := manual.Completions(newRootCommand(), filepath.Join(dir, "completions")); err != nil {
				return err
			}
			return manual.Markdown(newRootCommand(), filepath.Join(dir, "cli"))
		},
	}}
}

// sourceDate is the time of the commit, by which the manual is the same whenever it is made
// (https://reproducible-builds.org/specs/source-date-epoch).
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q: want seconds since 1970", text)
	}
	return time.Unix(seconds, 0), nil
}
