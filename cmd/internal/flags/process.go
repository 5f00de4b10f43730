package flags

import (
	"log/slog"
	"net/netip"
	"os"

	"github.com/spf13/pflag"
)

// Process concerns the process and not the overlay.
type Process struct {
	HealthzIP   string
	HealthzPort int    // 0: none
	LogFormat   string // text or json
	Version     bool   // print it and exit
	verbosity   int
	vmodule     string
	backtraceAt string
}

func (o *Process) register(f *pflag.FlagSet) {
	f.StringVar(&o.HealthzIP, "healthz-ip", "0.0.0.0", "address for --healthz-port")
	f.IntVar(&o.HealthzPort, "healthz-port", 0, "TCP port that answers GET /healthz (200 while the process runs) and /readyz (200 or 503); 0: none")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json, on standard error")
	f.IntVar(&o.verbosity, "v", 0, "log level: 1 or more also logs debug messages")
	f.StringVar(&o.vmodule, "vmodule", "", "part of flannel's log, and refused")
	f.StringVar(&o.backtraceAt, "log_backtrace_at", "", "part of flannel's log, and refused")
	for _, name := range []string{"vmodule", "log_backtrace_at"} {
		f.Lookup(name).Hidden = true
	}
}

// check checks the flags, and refuses those of flannel's log that overlayd cannot do.
func (o *Process) check(p *problems) {
	if _, err := netip.ParseAddr(o.HealthzIP); err != nil {
		p.bad("healthz-ip", o.HealthzIP, "want an IP address of this host, 0.0.0.0 or ::")
	}
	if o.HealthzPort < 0 || o.HealthzPort > 65535 {
		p.bad("healthz-port", o.HealthzPort, "want a TCP port, or 0 for none")
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		p.bad("log-format", o.LogFormat, "want text or json")
	}
	if o.vmodule != "" {
		p.bad("vmodule", o.vmodule, "overlayd's log has no level per file: use -v 1 for all of it")
	}
	if o.backtraceAt != "" && o.backtraceAt != ":0" { // klog's default
		p.bad("log_backtrace_at", o.backtraceAt, "overlayd's log writes no stack traces: use -v 1")
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
