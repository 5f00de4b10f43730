package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/bench/testbed"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// host is one host of the demo.
type host struct {
	*testbed.Host
	want fit.Mode // --dataplane
}

// startDaemons starts the first host's daemon, which runs etcd, and then the others.
func (d *demo) startDaemons(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	env := daemonEnv(os.Environ())
	endpoint := fmt.Sprintf("http://%s:2379", d.hosts[0].Addr)
	for i, h := range d.hosts {
		args := []string{"--dataplane", string(h.want), "--etcd-endpoints", endpoint}
		if i == 0 {
			args = []string{"--dataplane", string(h.want), "--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url", endpoint, "--network", network}
		}
		d.step("%s: overlayd %s", h.Name, strings.Join(args, " "))
		args = append(args, "--iface", "eth0", "--etcd-data-dir", filepath.Join(h.Dir, "etcd"))
		if err := h.Start(exe, env, args...); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if i == 0 || i == len(d.hosts)-1 {
			if err := d.awaitReady(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitReady waits for the hosts that were started and are not known to be ready.
func (d *demo) awaitReady(ctx context.Context) error {
	for _, h := range d.hosts {
		if !h.Running() || h.Dataplane != "" {
			continue
		}
		err := h.AwaitReady(ctx)
		if err == nil {
			err = h.readDataplane()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		d.step("%s: ready, has %s, dataplane %s, MTU %d", h.Name, h.Lease.Gateway.Masked(), h.Dataplane, h.Lease.MTU)
	}
	return nil
}

// readDataplane finds out from the device which dataplane runs.
func (h *host) readDataplane() error {
	l, err := h.NS.Link("flannel.1")
	if err != nil {
		return err
	}
	h.Dataplane = string(fit.Userspace)
	if l.Type() == "vxlan" {
		h.Dataplane = string(fit.Kernel)
	}
	if h.want != fit.Auto && string(h.want) != h.Dataplane {
		return fmt.Errorf("runs dataplane %s although %s was asked for", h.Dataplane, h.want)
	}
	return nil
}

// daemonEnv leaves out what would change the daemon's flags, or tell systemd that
// the service that happens to run the demo is ready.
func daemonEnv(env []string) []string {
	drop := map[string]bool{"NOTIFY_SOCKET": true}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(flags.Flags).Register(set)
	set.VisitAll(func(f *pflag.Flag) {
		for _, name := range flags.EnvNames(f.Name) {
			drop[name] = true
		}
	})
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return drop[name]
	})
}
