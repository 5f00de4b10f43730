package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/logs"
)

// Process concerns the process and not the overlay.
type Process struct {
	HealthzIP    string
	HealthzPort  int // 0: none
	MetricsIP    string
	MetricsPort  int    // 0: none
	MetricsPeers string // on, top or off
	LogFormat    string // text or json
	EnvFile      string // see WithEnvFile
	Version      bool   // print it and exit
	Replace      bool   // take the place of a running daemon
	StandBy      bool   // do not end before the daemon that takes the place of this one
	AdminGroup   int    // number of the group that may use the admin socket; -1: the process's own

	adminGroup    string
	probeInterval time.Duration // 0: none
	verbosity     int
	vmodule       string
	backtraceAt   string
}

// The values of --log-format.
const (
	formatText = "text"
	formatJSON = "json"
)

func (o *Process) register(f *pflag.FlagSet) {
	f.StringVar(&o.HealthzIP, "healthz-ip", "0.0.0.0", "address or name for --healthz-port; empty: every address of this host")
	f.IntVar(&o.HealthzPort, "healthz-port", 0, "TCP port that answers GET /healthz and /livez (200 while the process runs) and /readyz (200 or 503), and with ?verbose says why; 0: none")
	f.StringVar(&o.MetricsIP, "metrics-ip", "127.0.0.1", "address or name for --metrics-port; empty: every address of this host")
	f.IntVar(&o.MetricsPort, "metrics-port", 0, "TCP port that answers GET /metrics (for Prometheus), / (status page for browsers) and /v1/status (the same as JSON); 0: none")
	f.StringVar(&o.MetricsPeers, "metrics-peers", "top", "which peers have metrics of their own: on (all), top (the 100 that need attention first) or off (none)")
	f.BoolVar(&o.Replace, "replace", false, "take the place of the overlayd that runs with the same --subnet-file or --networks; it hands over its queues and sockets, so that no packet is lost")
	f.BoolVar(&o.StandBy, "stand-by", false, "stay when another overlayd has taken the place of this one, and end with it; after a drain to the kernel, do not end at once; for a supervisor that restarts what ends, as kubelet does")
	f.StringVar(&o.adminGroup, "admin-group", "", "group, by name or number, whose members may read the admin socket, as overlayd status does (default: root only)")
	f.StringVar(&o.EnvFile, EnvFlag, "", "file with lines such as OVERLAYD_ETCD_ENDPOINTS=http://192.0.2.11:2379, which override the environment; read again on SIGHUP; with a - before its path it may be missing")
	f.DurationVar(&o.probeInterval, "probe-interval", 10*time.Second, "time between two ICMP echo requests to each peer, from which log and status say whether it can be reached; 0: send none")
	f.StringVar(&o.LogFormat, "log-format", formatText, "text or json, on standard error")
	f.IntVar(&o.verbosity, "v", 0, "log level: 1 or more also logs debug messages")
	f.StringVar(&o.vmodule, "vmodule", "", "log levels of flannel's source files, without effect")
	f.StringVar(&o.backtraceAt, "log_backtrace_at", "", "lines of flannel's source that log a stack trace, without effect")
	for _, name := range []string{"vmodule", "log_backtrace_at"} {
		f.Lookup(name).Hidden = true
	}
}

// The bounds of --probe-interval.
const (
	minProbeInterval = 100 * time.Millisecond
	maxProbeInterval = time.Hour
)

// check checks the flags. A name in --healthz-ip is looked up when the port is opened: like flanneld's it may be one, or empty
// for every address.
func (o *Process) check(p *problems) {
	p.checkHost("healthz-ip", o.HealthzIP)
	p.checkHost("metrics-ip", o.MetricsIP)
	if o.HealthzPort > 65535 {
		p.bad("healthz-port", o.HealthzPort, "want a TCP port, or 0 for none")
	}
	if o.HealthzPort < 0 { // flanneld serves none either
		p.warn(fmt.Sprintf("--healthz-port %d is taken for 0: no port", o.HealthzPort), "--healthz-port 0")
		o.HealthzPort = 0
	}
	if o.verbosity < 0 { // flanneld takes it too
		p.warn(fmt.Sprintf("-v %d is taken for 0: nothing less can be logged", o.verbosity), "-v 0")
	}
	if o.MetricsPort < 0 || o.MetricsPort > 65535 {
		p.bad("metrics-port", o.MetricsPort, "want a TCP port, or 0 for none")
	}
	if o.MetricsPort != 0 && o.MetricsPort == o.HealthzPort {
		p.bad("metrics-port", o.MetricsPort, "want another port than that of --healthz-port")
	}
	if !slices.Contains([]string{"on", "top", "off"}, o.MetricsPeers) {
		p.bad("metrics-peers", o.MetricsPeers, "want on, top or off")
	}
	if d := o.probeInterval; d != 0 && (d < minProbeInterval || d > maxProbeInterval) {
		p.bad("probe-interval", d, fmt.Sprintf("want a time from %s to %s, such as 10s, or 0 for none", minProbeInterval, maxProbeInterval))
	}
	if err := o.findGroup(); err != nil {
		p.bad("admin-group", o.adminGroup, err.Error())
	}
	if o.LogFormat != formatText && o.LogFormat != formatJSON {
		p.bad("log-format", o.LogFormat, "want text or json")
	}
	if o.vmodule != "" {
		p.warn(fmt.Sprintf("--vmodule %s has no effect: this log has no level per file", o.vmodule), "-v 1")
	}
	if o.backtraceAt != "" && o.backtraceAt != ":0" { // klog's default
		p.warn(fmt.Sprintf("--log_backtrace_at %s has no effect: this log writes no stack traces", o.backtraceAt), "-v 1")
	}
}

// checkHost refuses a value that looks like an address and is not valid.
func (p *problems) checkHost(flag, host string) {
	if _, err := netip.ParseAddr(host); err != nil && host != "" && (strings.Contains(host, ":") || strings.Trim(host, "0123456789.") == "") {
		p.bad(flag, host, "want an address of this host such as 127.0.0.1, a name, or nothing for every address")
	}
}

// findGroup makes AdminGroup of --admin-group.
func (o *Process) findGroup() error {
	o.AdminGroup = -1
	if o.adminGroup == "" {
		return nil
	}
	number := o.adminGroup
	if _, err := strconv.Atoi(number); err != nil {
		g, err := user.LookupGroup(o.adminGroup)
		if err != nil {
			return errors.New("want the name or the number of a group of this host")
		}
		number = g.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return errors.New("want the number of a group")
	}
	o.AdminGroup = int(gid)
	return nil
}

// Level returns the level of the log that the flags ask for.
func (o *Process) Level() slog.Level {
	if o.verbosity > 0 {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Logger returns the log of the process, on standard error, with that level. The journal of systemd is told priorities.
func (o *Process) Logger(level slog.Leveler) *slog.Logger {
	return logs.New(logs.Stderr, logs.Config{JSON: o.LogsJSON(), Journal: LogsToJournal(), Level: level})
}

// LogsJSON reports whether the log is JSON.
func (o *Process) LogsJSON() bool { return o.LogFormat == formatJSON }

// LogFormat returns the --log-format of a command line, which may be wrong otherwise, so that an error of it is in the
// format of the log. f are the flags of the command, and args are normalized: see Normalize. It is empty if the
// command has no such flag.
func LogFormat(f *pflag.FlagSet, args []string, env func(string) (string, bool)) (format string) {
	if f.Lookup("log-format") == nil {
		return ""
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.ParseErrorsAllowlist.UnknownFlags, own.Usage = true, func() {}
	own.StringVar(&format, "log-format", "", "")
	own.String(EnvFlag, "", "")
	_ = own.Parse(args) // the command has the error
	env, _, _ = WithEnvFile(own, env)
	_ = ApplyEnv(own, env) // a text cannot be wrong
	return format
}

// LogsToJournal reports whether standard error is the journal of systemd.
func LogsToJournal() bool { return logs.ToJournal(os.Stderr, os.Getenv("JOURNAL_STREAM")) }
