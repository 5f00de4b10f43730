package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// demoHost is one host of the demo, its daemon and the pod behind it.
type demoHost struct {
	num  int        // from 1
	addr netip.Addr // on the underlay
	want string     // --dataplane
	dir  string
	ns   *demoNS
	pod  *demoNS

	daemon *demoDaemon // nil before it is started
	// What the daemon came up with; zero before it is ready.
	lease demoLease
	mode  string // modeKernel or modeUserspace, as the device tells
}

func newDemoHost(num int, dir string) *demoHost {
	h := &demoHost{
		num:  num,
		addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + num)}),
		want: modeUserspace,
		dir:  filepath.Join(dir, fmt.Sprintf("host%d", num)),
	}
	if num == 1 {
		h.want = modeKernel
	}
	return h
}

// join makes the host and plugs it into the underlay.
func (h *demoHost) join(lan *demoNS) (err error) {
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		return err
	}
	if h.ns, err = newDemoNS(fmt.Sprintf("%shost%d", demoPrefix, h.num)); err != nil {
		return err
	}
	port := fmt.Sprintf("port%d", h.num)
	if err := lan.addVeth(port, h.ns, "eth0", 0); err != nil {
		return err
	}
	if err := lan.addToBridge(port); err != nil {
		return err
	}
	return h.ns.addAddr("eth0", netip.PrefixFrom(h.addr, 24))
}

// addPod does what a CNI plugin does with the subnet file.
func (h *demoHost) addPod() (err error) {
	if h.pod, err = newDemoNS(fmt.Sprintf("%spod%d", demoPrefix, h.num)); err != nil {
		return err
	}
	if err := h.ns.addVeth("pod0", h.pod, "eth0", h.lease.mtu); err != nil {
		return err
	}
	if err := h.ns.addAddr("pod0", h.lease.gateway); err != nil {
		return err
	}
	if err := h.pod.addAddr("eth0", netip.PrefixFrom(h.podAddr(), h.lease.gateway.Bits())); err != nil {
		return err
	}
	return h.pod.addDefaultRoute(h.lease.gateway.Addr())
}

func (h *demoHost) podAddr() netip.Addr { return h.lease.gateway.Addr().Next() }

func (h *demoHost) subnetFile() string { return filepath.Join(h.dir, "subnet.env") }
func (h *demoHost) logFile() string    { return filepath.Join(h.dir, "overlayd.log") }

// demoDaemon is one overlayd process.
type demoDaemon struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	err    error         // how it ended; to be read after exited
}

// startDaemon starts exe in the host, in a session of its own: a Ctrl-C on the
// terminal is for the demo alone, which then stops the daemons in order.
func (h *demoHost) startDaemon(exe string, args []string) error {
	log, err := os.Create(h.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	args = append([]string{"--dataplane", h.want, "--iface", "eth0", demoSubnetFlag, h.subnetFile(),
		"--etcd-data-dir", filepath.Join(h.dir, "etcd")}, args...)
	cmd := exec.Command(exe, args...)
	cmd.Env = demoEnv(os.Environ())
	cmd.Dir, cmd.Stdout, cmd.Stderr = h.dir, log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := h.ns.do(cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", exe, err)
	}
	d := &demoDaemon{cmd: cmd, exited: make(chan struct{})}
	h.daemon = d
	// stopDaemon waits for it; with --keep the daemon outlives this process.
	go func() {
		defer close(d.exited)
		d.err = cmd.Wait()
	}()
	return nil
}

// demoEnv leaves out what would change the daemon's flags, or tell systemd that
// the service which happens to run the demo is ready.
func demoEnv(env []string) []string {
	drop := map[string]bool{"NOTIFY_SOCKET": true}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(options).register(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		for _, name := range envNames(f.Name) {
			drop[name] = true
		}
	})
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return drop[name]
	})
}

// awaitReady waits for the subnet file, which the daemon writes when it is ready.
func (h *demoHost) awaitReady(ctx context.Context) error {
	deadline := time.After(demoReady)
	for {
		text, err := os.ReadFile(h.subnetFile())
		if err == nil {
			if h.lease, err = parseDemoLease(string(text)); err != nil {
				return fmt.Errorf("read subnet file: %w", err)
			}
			h.mode, err = h.readMode()
			return err
		}
		select {
		case <-h.daemon.exited:
			state := h.daemon.cmd.ProcessState
			h.daemon = nil // nothing to stop
			return fmt.Errorf("overlayd ended before it was ready (%s)", state)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("overlayd was not ready within %s", demoReady)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// readMode tells the dataplane from the device, not from what was asked for.
func (h *demoHost) readMode() (mode string, err error) {
	err = h.ns.do(func() error {
		l, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return fmt.Errorf("find device flannel.1: %w", err)
		}
		mode = modeUserspace
		if l.Type() == "vxlan" {
			mode = modeKernel
		}
		return nil
	})
	if err == nil && h.want != modeAuto && h.want != mode {
		err = fmt.Errorf("runs dataplane %s although %s was asked for", mode, h.want)
	}
	return mode, err
}

// stopDaemon ends the daemon. Its error says that it did not end as it should.
func (h *demoHost) stopDaemon() error {
	if h.daemon == nil {
		return nil
	}
	const patience = 3 * time.Second
	d := h.daemon
	select {
	case <-d.exited:
		return fmt.Errorf("host%d: overlayd had ended by itself (%s)", h.num, d.cmd.ProcessState)
	default:
	}
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("host%d: stop overlayd: %w", h.num, err)
	}
	select {
	case <-d.exited:
		if d.err != nil {
			return fmt.Errorf("host%d: overlayd ended with an error when it was stopped: %w", h.num, d.err)
		}
		return nil
	case <-time.After(patience):
	}
	d.cmd.Process.Kill()
	<-d.exited
	return fmt.Errorf("host%d: overlayd did not stop within %s and was killed", h.num, patience)
}
