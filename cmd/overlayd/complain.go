package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/fixes"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/logs"
)

// complain writes the error that ends the program, and what to do about it: as text for people, or as the last line of
// a log in JSON.
func complain(cmd *cobra.Command, args []string, err error) {
	fix, text := fixes.Of(nil, "", err), ""
	usage := errors.As(err, new(usageError))
	if usage {
		fix = fixes.OfUsage(err)
	}
	if usage && fix == "" {
		fix = fmt.Sprintf("Run '%s --help' for the flags.", cmd.CommandPath())
		text = fmt.Sprintf("overlayd: %v\n%s\n", err, fix)
	} else if text = fmt.Sprintf("overlayd: %v\n", err); fix != "" {
		text += "fix: " + fix + "\n"
	}
	process := flags.Process{LogFormat: flags.LogFormat(cmd.Flags(), args, os.LookupEnv)}
	out := io.Writer(os.Stderr)
	if !cmd.HasParent() { // the daemon ends even if nobody reads that
		out = logs.Stderr
	}
	switch {
	case process.LogsJSON():
		attrs := []any{"err", err}
		if fix != "" {
			attrs = append(attrs, "fix", fix)
		}
		process.Logger(slog.LevelError).Error("overlayd ends", attrs...)
	case flags.LogsToJournal():
		fmt.Fprint(out, logs.Prefixed(slog.LevelError, text))
	default:
		fmt.Fprint(out, text)
	}
}
