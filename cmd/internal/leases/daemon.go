package leases

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/dataplane"
)

// Flags say which etcd the lease commands ask.
type Flags struct {
	Etcd       *flags.Etcd
	SubnetFile string
}

// Complete takes the flags that are given in f. The others are those of the daemon on this host, or if none runs
// the defaults. If f says which etcd to ask, the daemon's are not used at all: its password is not for another
// etcd. Of several networks that the daemon serves, f has to say which one is meant. An error that is neither
// nodefile.ErrTwoDaemons nor ErrUnknown is of a flag or a variable.
func (o *Flags) Complete(f *pflag.FlagSet) error {
	if err := flags.ApplyEnv(f, os.LookupEnv); err != nil {
		return err
	}
	if !slices.ContainsFunc([]string{"etcd-endpoints", "etcd-embedded", "etcd-listen-client-url"}, f.Changed) {
		d, err := o.ofDaemon(f)
		switch {
		case errors.As(err, new(kubeError)) || errors.As(err, new(*severalError)) || errors.Is(err, nodefile.ErrTwoDaemons):
			return err
		case err != nil: // the etcd of the defaults may be another one
			return dataplane.WithFix(fmt.Errorf("%w: %w", ErrUnknown, err), "run this as root where the daemon runs, or give --etcd-endpoints and --etcd-prefix")
		case d != nil:
			d.Quiet = true
			o.Etcd = d
			return nil
		}
	}
	o.Etcd.Quiet = true
	return o.Etcd.Complete(f, os.LookupEnv)
}

// ErrUnknown says that a daemon runs, or may run, and that nobody knows which etcd it asks.
var ErrUnknown = errors.New("the flags of the daemon on this host cannot be read")

// ofDaemon returns the flags of the daemon on this host, nil if none runs.
func (o *Flags) ofDaemon(f *pflag.FlagSet) (*flags.Etcd, error) {
	files := []string{o.SubnetFile}
	if !f.Changed("subnet-file") {
		files = append(files, nodefile.SubnetFilesIn(flags.DefaultSubnetDir)...)
	}
	pid, held, err := nodefile.FindDaemon(files)
	if err != nil || pid == 0 {
		return nil, err
	}
	d, err := FlagsOfProcess(pid, f)
	switch {
	case d != nil && d.Kube.Enabled:
		return nil, kubeError(pid)
	case err != nil || d == nil:
		return nil, err
	case !d.Network.Several() || f.Changed("etcd-prefix"):
		return &d.Etcd, nil
	}
	several := &severalError{pid: pid}
	for _, file := range held {
		several.prefixes = append(several.prefixes, d.Etcd.PrefixOf(nodefile.NetworkOf(file)))
	}
	if len(several.prefixes) > 1 {
		return nil, several
	}
	d.Etcd.Prefix = several.prefixes[0]
	return &d.Etcd, nil
}

// severalError is a daemon that serves several networks, by the prefixes of their keys.
type severalError struct {
	pid      int
	prefixes []string
}

func (e *severalError) Error() string {
	return fmt.Sprintf("the daemon (pid %d) serves several networks: choose one with --etcd-prefix %s", e.pid, strings.Join(e.prefixes, ", or --etcd-prefix "))
}

// kubeError is a daemon, by its pid, whose subnet does not come from etcd.
type kubeError int

func (pid kubeError) Error() string {
	return fmt.Sprintf("the daemon (pid %d) has its subnet from Kubernetes, as the podCIDR of its Node: these commands are for etcd", int(pid))
}

// FlagsOfProcess returns the flags of a daemon, with those in given instead of its own. It returns nil if the
// process is a command that ends soon, such as a drain.
func FlagsOfProcess(pid int, given *pflag.FlagSet) (*flags.Flags, error) {
	args, err := procStrings(pid, "cmdline")
	if err != nil {
		return nil, err
	}
	environ, err := procStrings(pid, "environ")
	if err != nil {
		return nil, err
	}
	o, f, err := flags.Parse(args[1:])
	if err != nil {
		return nil, fmt.Errorf("command line of pid %d: %w", pid, err)
	}
	if f.NArg() > 0 {
		return nil, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	flags.MakeAbsolute(given, here)
	given.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && f.Lookup(flag.Name) != nil {
			err = errors.Join(err, f.Set(flag.Name, flag.Value.String()))
		}
	})
	if err != nil {
		return nil, err
	}
	env, _, err := flags.WithEnvFile(f, func(key string) (string, bool) {
		i := slices.IndexFunc(environ, func(s string) bool { return strings.HasPrefix(s, key+"=") })
		if i < 0 {
			return "", false
		}
		return environ[i][len(key)+1:], true
	})
	if err != nil {
		return nil, err
	}
	if o.Etcd.Dir, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil {
		return nil, err
	}
	return o, o.Etcd.Complete(f, env)
}

// procStrings reads a list of strings that the kernel keeps for a process.
func procStrings(pid int, name string) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return nil, err
	}
	list := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	if len(b) == 0 { // it has ended
		return nil, fmt.Errorf("pid %d: %w", pid, os.ErrProcessDone)
	}
	return list, nil
}
