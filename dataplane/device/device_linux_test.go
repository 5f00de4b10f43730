package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// TestNoticesConcernTheDevice: whether the device is made or its queues are inherited, a notification about it matters,
// and one about another device does not.
func TestNoticesConcernTheDevice(t *testing.T) {
	for name, attached := range map[string]*tun.Mode{"made": nil, "inherited": {}} {
		t.Run(name, func(t *testing.T) {
			netnstest.New(t).Must(func() error {
				if attached != nil {
					if err := tun.Make(dataplane.DeviceName(1), *attached, true); err != nil {
						return err
					}
				}
				d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Attached: attached})
				if err != nil {
					return err
				}
				defer d.Close()
				for index, want := range map[int]bool{d.index: true, d.index + 1: false} {
					link := make([]byte, unix.SizeofIfInfomsg)
					binary.NativeEndian.PutUint32(link[4:], uint32(index)) // struct ifinfomsg in linux/rtnetlink.h
					if got := d.routes.concerns(unix.NlMsghdr{Type: unix.RTM_NEWLINK}, link); got != want {
						t.Errorf("link %d of device %d: %t", index, d.index, got)
					}
				}
				return nil
			})
		})
	}
}

// TestBusyForAMoment: a device that another process still has open, for a moment, is waited for.
func TestBusyForAMoment(t *testing.T) {
	for _, persist := range []bool{true, false} {
		for _, mode := range []tun.Mode{{}, {Vnet: true, Multi: true}} {
			t.Run(fmt.Sprintf("persist=%t/mode=%+v", persist, mode), func(t *testing.T) {
				netnstest.New(t).Must(func() error {
					if persist {
						if err := tun.Make(dataplane.DeviceName(1), mode, true); err != nil {
							return err
						}
					}
					fd, err := tun.Attach(dataplane.DeviceName(1), mode)
					if err != nil {
						return err
					}
					closed := make(chan error)
					time.AfterFunc(busyPatience/10, func() { closed <- unix.Close(fd) })
					d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Mode: mode})
					if err := errors.Join(err, <-closed); err != nil {
						return err
					}
					d.Close()
					return nil
				})
			})
		}
	}
}

// TestSettleAgain: a device that could not get its name tries again, as it has a predecessor until then.
func TestSettleAgain(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("kernel before 6.2=%t", old), func(t *testing.T) {
			n := netnstest.New(t)
			n.Run("ip", "link", "add", "flannel.1", "type", "vxlan", "id", "1", "dstport", "8472")
			n.Must(func() error {
				d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1})
				if err != nil {
					return err
				}
				defer d.Close()
				d.conn.NoLiveRename = old
				if err := d.Up(1400); err != nil {
					return err
				}
				n.Run("ip", "link", "del", "flannel.1")
				n.Run("ip", "link", "add", "flannel.1", "type", "bridge")
				if err := d.Settle(nil); err == nil || len(d.Predecessors()) != 1 {
					t.Errorf("got %v, predecessors %v", err, d.Predecessors())
				}
				n.Run("ip", "link", "del", "flannel.1")
				if err := d.Settle(nil); err != nil || len(d.Predecessors()) != 0 || d.Name() != "flannel.1" {
					t.Errorf("got %v, predecessors %v, device %s", err, d.Predecessors(), d.Name())
				}
				return nil
			})
		})
	}
}

// TestStrangerInAHurry: a user who attaches to each new device as soon as it is there has no queue of the one that is used.
func TestStrangerInAHurry(t *testing.T) {
	const nobody = 65534
	n := netnstest.New(t)
	tunFD := func() (fd int, err error) { return unix.Open(tun.Path, unix.O_RDWR|unix.O_CLOEXEC, 0) }
	quit, ended := make(chan struct{}), make(chan error)
	var got atomic.Bool
	go func() {
		ended <- n.Do(func() error {
			conn, err := rtnl.Open()
			if err != nil {
				return err
			}
			defer conn.Close()
			fd, err := tunFD() // as the user could with a device node of mode 0666
			if err != nil {
				return err
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				return errno
			}
			defer func() { <-quit; unix.Close(fd) }()
			for {
				select {
				case <-quit:
					return nil
				default:
				}
				links, err := conn.Links()
				for _, l := range links {
					req, rerr := unix.NewIfreq(l.Attrs().Name)
					if err != nil || rerr != nil || l.Attrs().Name == "lo" {
						continue
					}
					req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
					if unix.IoctlIfreq(fd, unix.TUNSETIFF, req) == nil {
						got.Store(true)
						return nil
					}
				}
			}
		})
	}()
	n.Must(func() error {
		for i := 0; i < 50 && !got.Load(); i++ {
			d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Mode: tun.Mode{Vnet: true, Multi: true}})
			if err != nil {
				return err
			}
			l, err := d.conn.LinkByIndex(d.index)
			if err != nil {
				return err
			}
			if q := rtnl.TUNQueues(l); q != 0 {
				t.Errorf("%d queues of others", q)
			}
			d.Undo()
		}
		return nil
	})
	close(quit)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Log("the stranger was faster once:", got.Load())
}
