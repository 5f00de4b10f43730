package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// TestStartNeeds: what keeps a daemon from starting is named with what helps. A daemon that carries a network has all of it.
func TestStartNeeds(t *testing.T) {
	for _, c := range []struct {
		name               string
		other              bool // file stands at /dev/net/tun
		plain              bool // without capabilities
		daemon             *status.Daemon
		rights, dataplanes State
		text, fix          string // in one of both
	}{
		{"all of it", false, false, nil, OK, OK, "", ""},
		{"no right", false, true, nil, Fail, Unknown, "no CAP_NET_ADMIN", "docker run --cap-add NET_ADMIN"},
		{"no right beside a daemon", false, true, &status.Daemon{At: time.Now()}, Unknown, Unknown, "run overlayd doctor as root", ""},
		{"no right, and no need", false, true, &status.Daemon{At: time.Now(), Networks: []status.Network{{SessionStart: time.Now()}}}, OK, OK, "", ""},
		{"another file", true, false, nil, OK, Warn, "only the kernel dataplane works here: /dev/net/tun is another file", "docker run --device /dev/net/tun, if --dataplane=userspace"},
		{"a daemon that waits, and another file", true, false, &status.Daemon{At: time.Now()}, OK, Warn, "only the kernel dataplane", "docker run --device /dev/net/tun"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			ns.Must(func() error {
				if err := ownTUN(t.TempDir(), c.other); err != nil {
					return err
				}
				look := func() {
					o := overlay{scene: &Scene{Daemon: c.daemon}}
					rights, planes := checkRights(&o)[0], checkDataplanes(&o)[0]
					if rights.State != c.rights || planes.State != c.dataplanes {
						t.Errorf("%+v, want %s; %+v, want %s", rights, c.rights, planes, c.dataplanes)
					}
					if all := rights.Text + planes.Text; !strings.Contains(all, c.text) || !strings.Contains(rights.Fix+planes.Fix, c.fix) {
						t.Errorf("%+v, %+v", rights, planes)
					}
				}
				if c.plain {
					return unprivileged(look)
				}
				look()
				return nil
			})
			if links := ns.Run("ip", "-o", "link"); strings.Contains(links, "\n") {
				t.Errorf("it has made a device:\n%s", links)
			}
		})
	}
}

// ownTUN gives the calling thread a /dev/net/tun of its own: the device, or another file.
func ownTUN(dir string, other bool) error {
	file := dir + "/tun"
	if err := unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(10, 200))); err != nil {
		return err
	}
	if other {
		file = "/dev/null"
	} else if err := unix.Chmod(file, 0o666); err != nil {
		return err
	}
	return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), unix.Mount(file, tun.Path, "", unix.MS_BIND, ""))
}

// TestDataplanes: what is wrong with each dataplane is said with what helps.
func TestDataplanes(t *testing.T) {
	for _, c := range []struct {
		noKernel, noTUN error
		state           State
		text, fix       string
	}{
		{nil, nil, OK, "", ""},
		{kernel.ErrUnsupported, nil, Warn, "only the userspace dataplane works here: the kernel has no vxlan", "modprobe vxlan on the host, or --dataplane=userspace"},
		{nil, tun.ErrNoModule, Warn, "only the kernel dataplane works here: the kernel has no TUN support", "modprobe tun"},
		{kernel.ErrUnsupported, tun.ErrNoTUN, Fail, "no dataplane works here", "modprobe vxlan on the host, or --dataplane=userspace; docker run --device /dev/net/tun"},
		{errors.New("something else"), errors.New("more"), Fail, "kernel: something else; userspace: more", "as the error tells"},
	} {
		if r := dataplanes(c.noKernel, c.noTUN)[0]; r.State != c.state || !strings.Contains(r.Text, c.text) || !strings.Contains(r.Fix, c.fix) {
			t.Errorf("%v, %v: %+v", c.noKernel, c.noTUN, r)
		}
	}
}
