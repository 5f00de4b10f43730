package flags

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
)

// Process concerns the process and not the overlay.
type Process struct {
	HealthzIP   string
	HealthzPort int    // 0: none
	LogFormat   string // text or json
	Version     bool   // print it and exit
	Replace     bool   // take the place of a running daemon
	verbosity   int
	vmodule     string
	backtraceAt string
}

func (o *Process) register(f *pflag.FlagSet) {
	f.StringVar(&o.HealthzIP, "healthz-ip", "0.0.0.0", "address or name for --healthz-port; empty: every address of this host")
	f.IntVar(&o.HealthzPort, "healthz-port", 0, "TCP port that answers GET /healthz (200 while the process runs) and /readyz (200 or 503); 0: none")
	f.BoolVar(&o.Replace, "replace", false, "take the place of the overlayd that runs with the same --subnet-file or --networks: with --dataplane=userspace it hands over its packets, and none is lost")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json, on standard error")
	f.IntVar(&o.verbosity, "v", 0, "log level: 1 or more also logs debug messages")
	f.StringVar(&o.vmodule, "vmodule", "", "log levels of flannel's source files, without effect")
	f.StringVar(&o.backtraceAt, "log_backtrace_at", "", "lines of flannel's source that log a stack trace, without effect")
	for _, name := range []string{"vmodule", "log_backtrace_at"} {
		f.Lookup(name).Hidden = true
	}
}

// check checks the flags. --healthz-ip is checked when the port is opened: like flanneld's it may be a
// name, or empty for every address.
func (o *Process) check(p *problems) {
	if o.HealthzPort = max(o.HealthzPort, 0); o.HealthzPort > 65535 {
		p.bad("healthz-port", o.HealthzPort, "want a TCP port, or 0 for none")
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		p.bad("log-format", o.LogFormat, "want text or json")
	}
	if o.vmodule != "" {
		p.warn(fmt.Sprintf("--vmodule %s has no effect: this log has no level per file", o.vmodule), "-v 1")
	}
	if o.backtraceAt != "" && o.backtraceAt != ":0" { // klog's default
		p.warn(fmt.Sprintf("--log_backtrace_at %s has no effect: this log writes no stack traces", o.backtraceAt), "-v 1")
	}
}

// Logger returns the log of the process, on standard error.
func (o *Process) Logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if o.verbosity > 0 {
		opts.Level = slog.LevelDebug
	}
	if o.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
