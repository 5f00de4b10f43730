package node

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDrainBesideFlanneld: once a flanneld runs in the place of the daemon, lease and subnet file are
// flanneld's, and so is the device: neither way to drain takes them.
func TestDrainBesideFlanneld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file, network string // of the flanneld: the subnet file behind ours, and the network of this host's
		want                error
	}{
		{"the same file", "", "10.5.0.0/16", leftovers.ErrFlanneldRuns},
		{"another file, the same network", ".other", "10.5.0.0/16", leftovers.ErrFlanneldRuns},
		{"another network", ".other", "10.6.0.0/16", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, w := netnstest.New(t), newWorld(t)
			netnstest.LAN(t, "192.0.2.0/24", ns)
			w.cfg.Underlay.Iface = []string{"eth0"}
			w.setConfig(strings.Replace(w.config(0, ""), "10.5.0.0/16", c.network, 1))
			subnet := strings.Replace(c.network, "0.0/16", "1.0/24", 1)
			mine := w.lease(subnet, "192.0.2.2")
			for _, file := range []string{w.cfg.SubnetFile, w.cfg.SubnetFile + c.file} {
				if err := os.WriteFile(file, []byte("FLANNEL_SUBNET=10.5.1.1/24\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			processtest.Flanneld(t, ns.Start, "-subnet-file", w.cfg.SubnetFile+c.file)
			ns.Must(func() error {
				if _, err := Drain(t.Context(), w.cfg); !errors.Is(err, c.want) {
					t.Errorf("drain: %v, want %v", err, c.want)
				}
				if c.file != "" {
					return nil
				}
				if _, err := DrainToKernel(t.Context(), w.cfg); !errors.Is(err, c.want) {
					t.Errorf("drain to the kernel: %v, want %v", err, c.want)
				}
				return nil
			})
			_, err := os.Stat(w.cfg.SubnetFile)
			if kept := slices.Contains(w.leases(), mine) && err == nil; kept != (c.want != nil) {
				t.Errorf("lease and file are kept: %v; leases %q", kept, w.leases())
			}
		})
	}
}
