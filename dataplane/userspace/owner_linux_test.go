package userspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/tun"
)

const nobody = 65534

// openNode returns a character device of TUN that every user may open, as udev makes it.
func openNode(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tun") // t.TempDir is below a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	node := filepath.Join(dir, "tun")
	if err := errors.Join(os.Chmod(dir, 0o755), unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))), os.Chmod(node, 0o666)); err != nil {
		t.Fatal(err)
	}
	return node
}

// attachAs attaches to the overlay device of h, or makes it, as tun.Attach does, but without an owner.
func (h *testHost) attachAs(uid int, node string, mode tun.Mode) (f *os.File, err error) {
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if mode.Vnet {
		flags |= unix.IFF_VNET_HDR
	}
	if mode.Multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err = h.Do(func() error { // on a thread that ends
		if uid != 0 {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				return fmt.Errorf("become user %d: %w", uid, errno)
			}
		}
		fd, err := unix.Open(node, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		req, err := unix.NewIfreq("flannel.1")
		if err == nil {
			req.SetUint16(flags)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), node) // now it can be polled
		return nil
	})
	return f, err
}

// inherit opens a dataplane with the queues of an older version, of a device without an owner, and returns the index of that. beside runs when the first queue is there.
func (h *testHost) inherit(node string, mode tun.Mode, beside func()) (index int, d *Dataplane) {
	h.tb.Helper()
	cfg := h.config()
	for i := range pairs(mode.Multi) {
		f, err := h.attachAs(0, node, mode)
		if err != nil {
			h.tb.Fatal(err)
		}
		if i == 0 {
			beside()
		}
		cfg.Inherited = append(cfg.Inherited, carrier.Export{Name: inherit.QueueName(h.vni), Version: carrier.ExportVersion,
			Flags: inherit.Flags(h.offloads.OfFiles(), mode), File: f})
	}
	index = h.link().Attrs().Index
	h.Must(func() (err error) { d, err = Open(cfg); return err })
	return index, d
}

// TestOnlyTheOwnerAttaches: no other user of the host gets a queue of the device, however it came to be, and who had one before it
// got its owner has none any more.
func TestOnlyTheOwnerAttaches(t *testing.T) {
	node := openNode(t)
	leave := func(t *testing.T, h *testHost, mode tun.Mode) *os.File { // as an older version did
		t.Helper()
		f, err := h.attachAs(0, node, mode)
		if err == nil {
			err = unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	stranger := func(t *testing.T, h *testHost, mode tun.Mode) {
		t.Helper()
		f, err := h.attachAs(nobody, node, mode)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	for _, offloads := range []Offloads{0, TUNVnet, AllOffloads &^ TUNMultiqueue, AllOffloads} {
		mode := tun.Mode{Vnet: offloads.has(TUNVnet), Multi: offloads.has(TUNVnet | TUNMultiqueue)}
		for name, open := range map[string]func(t *testing.T, h *testHost) *Dataplane{
			"new": func(_ *testing.T, h *testHost) *Dataplane { return h.open() },
			"left without an owner": func(t *testing.T, h *testHost) *Dataplane {
				leave(t, h, mode).Close()
				return h.open()
			},
			"left, and a stranger has it": func(t *testing.T, h *testHost) *Dataplane {
				leave(t, h, mode).Close()
				stranger(t, h, mode)
				return h.open()
			},
			"handed over": func(t *testing.T, h *testHost) *Dataplane {
				d := h.open()
				h.sync(d)
				return h.handOver(d, h.run(d), func(*Config) {})
			},
			"handed over without an owner": func(t *testing.T, h *testHost) *Dataplane {
				before, d := h.inherit(node, mode, func() {})
				if after := h.link().Attrs().Index; after != before {
					t.Errorf("device %d is made anew: %d", before, after)
				}
				return d
			},
			"handed over, and a stranger has it": func(t *testing.T, h *testHost) *Dataplane {
				_, d := h.inherit(node, mode, func() {
					if mode.Multi {
						stranger(t, h, mode)
					}
				})
				return d
			},
			"another user's": func(t *testing.T, h *testHost) *Dataplane {
				f := leave(t, h, mode)
				if err := unix.IoctlSetInt(int(f.Fd()), unix.TUNSETOWNER, nobody); err != nil {
					t.Fatal(err)
				}
				f.Close()
				return h.open()
			},
			"given away": func(t *testing.T, h *testHost) *Dataplane {
				d := h.open()
				h.sync(d)
				th, ok := d.host.(*tunHost)
				if !ok {
					t.Fatalf("host is a %T", d.host)
				}
				conn, err := th.qs[0].source().SyscallConn()
				if err == nil {
					cerr := conn.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETOWNER, nobody) })
					err = errors.Join(err, cerr)
				}
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
		} {
			t.Run(offloads.String()+"/"+name, func(t *testing.T) {
				h := newHost(t)
				h.offloads = offloads
				d := open(t, h)
				h.sync(d)
				h.run(d)
				if f, err := h.attachAs(nobody, node, mode); !errors.Is(err, unix.EPERM) {
					if err == nil {
						f.Close()
					}
					t.Errorf("user %d gets: %v", nobody, err)
				}
			})
		}
	}
}
