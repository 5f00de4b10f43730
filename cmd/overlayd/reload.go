package main

import (
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
)

// reloader does what SIGHUP asks for.
type reloader struct {
	cfg     node.Config
	daemon  *node.Daemon
	started *flags.Flags
	flags   *pflag.FlagSet // of started
}

// reload reads the flags again, as --env-file and other files may say something else now, and has the stores read
// their certificates again. It takes over the log level and the certificates, ends nothing, and says in one line what it did.
func (r *reloader) reload() {
	log := r.cfg.Log
	o, f, err := flags.Parse(os.Args[1:])
	if err == nil {
		err = o.Complete(f, os.LookupEnv)
	}
	if err != nil {
		log.Error("SIGHUP: nothing is applied", "err", err, "fix", "correct it, and send SIGHUP again")
		return
	}
	for _, w := range o.Warnings {
		if !slices.Contains(r.started.Warnings, w) {
			log.Warn(w.Text, "fix", w.Fix)
		}
	}
	level := o.Process.Level()
	r.cfg.LogLevel.Set(level)
	flags.WarnOfCertificates(log, o.Certificates(), time.Now())
	read, err := r.daemon.ReadCertificates()
	if err != nil {
		log.Error("SIGHUP: log level applied, certificates not: going on with the previous ones", "log_level", level, "err", err,
			"fix", "correct it, and send SIGHUP again")
		return
	}
	attrs := []any{"log_level", level, "certificates", read}
	if later := slices.DeleteFunc(flags.Differences(r.flags, f), func(name string) bool { return name == "v" }); len(later) > 0 {
		attrs = append(attrs, "after_a_restart", later)
	}
	log.Info("SIGHUP: read again", attrs...)
}
