package main

import (
	"log/slog"
	"net/netip"
	"os"

	"github.com/spf13/pflag"
)

// processOptions concern the process and not the overlay.
type processOptions struct {
	healthzIP   string
	healthzPort int
	logFormat   string
	verbosity   int
	vmodule     string
	backtraceAt string
	version     bool
}

func (o *processOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.healthzIP, "healthz-ip", "0.0.0.0", "address for --healthz-port")
	f.IntVar(&o.healthzPort, "healthz-port", 0, "TCP port that answers GET /healthz (200 while the process runs) and /readyz (200 or 503); 0: none")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json, on standard error")
	f.IntVar(&o.verbosity, "v", 0, "log level: above 0 also what is of use only in a debugging session")
	f.StringVar(&o.vmodule, "vmodule", "", "of flannel's log, and refused")
	f.StringVar(&o.backtraceAt, "log_backtrace_at", "", "of flannel's log, and refused")
	for _, name := range []string{"vmodule", "log_backtrace_at"} {
		f.Lookup(name).Hidden = true
	}
}

func (o *processOptions) check(p *problems) {
	if _, err := netip.ParseAddr(o.healthzIP); err != nil {
		p.bad("healthz-ip", o.healthzIP, "want an IP address of this host, 0.0.0.0 or ::")
	}
	if o.healthzPort < 0 || o.healthzPort > 65535 {
		p.bad("healthz-port", o.healthzPort, "want a TCP port, or 0 for none")
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		p.bad("log-format", o.logFormat, "want text or json")
	}
	if o.vmodule != "" {
		p.bad("vmodule", o.vmodule, "overlayd's log has no level per file: use -v 1 for all of it")
	}
	if o.backtraceAt != "" && o.backtraceAt != ":0" { // klog's own text for none
		p.bad("log_backtrace_at", o.backtraceAt, "overlayd's log writes no stack traces: use -v 1")
	}
}

func (o *processOptions) logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if o.verbosity > 0 {
		opts.Level = slog.LevelDebug
	}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
