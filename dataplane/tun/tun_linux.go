package tun

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// vnetHeaderLen is the length of struct virtio_net_hdr (linux/virtio_net.h) without its later fields.
const vnetHeaderLen = 10

// Mode is what has to be known of a TUN device to attach to it.
type Mode struct {
	Vnet  bool // every packet has a vnet header in front
	Multi bool // it may have several queues
}

func (m Mode) flags() uint16 {
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if m.Vnet {
		flags |= unix.IFF_VNET_HDR
	}
	if m.Multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	return flags
}

// Probe returns the mode that is wanted, as far as the kernel has it.
func Probe(want Mode) (m Mode, err error) {
	fd, err := unix.Open(Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return m, openError(err)
	}
	defer unix.Close(fd)
	features, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES)
	if err != nil {
		return m, nil // older than Linux 2.6.27, or not Linux
	}
	m.Vnet = want.Vnet && features&unix.IFF_VNET_HDR != 0
	m.Multi = m.Vnet && want.Multi && features&unix.IFF_MULTI_QUEUE != 0
	return m, nil
}

// Usable returns why no TUN device can be made or opened here, as far as that is known without doing so; nil: one can.
func Usable() error {
	var s unix.Stat_t
	if err := unix.Stat(Path, &s); err == nil && (s.Mode&unix.S_IFMT != unix.S_IFCHR || s.Rdev != node) {
		return fmt.Errorf("%s is another file than character device 10:200: %w", Path, ErrNoTUN)
	}
	_, err := Probe(Mode{})
	return err
}

// node is the number of the character device (Documentation/admin-guide/devices.txt).
var node = unix.Mkdev(10, 200)

// Attach opens a queue of the TUN device of that name, which it makes if it is
// missing, and gives the device to the user of this process. An empty name takes any free one.
func Attach(name string, mode Mode) (fd int, err error) { return attach(name, name, mode) }

// attach is Attach whose errors have another name of the device.
func attach(name, final string, mode Mode) (fd int, err error) {
	if fd, err = unix.Open(Path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return -1, openError(err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make TUN device %q: name of more than 15 bytes: %w", name, err)
	}
	req.SetUint16(mode.flags())
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return -1, attachError(final, err)
	}
	if err := Own(fd); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make TUN device %s: %w", final, err)
	}
	return fd, nil
}

// Own gives the device of a queue to the user of this process. Without an owner the kernel lets every user who may open
// Path attach to it (tun_not_capable in drivers/net/tun.c); with one, that user and CAP_NET_ADMIN.
func Own(fd int) error {
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return fmt.Errorf("give it to user %d: %w", os.Geteuid(), os.NewSyscallError("ioctl TUNSETOWNER", err))
	}
	return nil
}

// New makes a persistent TUN device. Until the device has its owner, any user may attach to it: it is made under a temporary name, which
// nobody knows beforehand, and goes again unless settle has given it the final name. settle is to see that it has one queue only.
func New(final string, mode Mode, settle func(temporary string) error) error {
	var random [5]byte
	_, _ = rand.Read(random[:]) // it never fails
	temporary := fmt.Sprintf("ovl.n%x", random)
	fd, err := attach(temporary, final, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := settle(temporary); err != nil {
		return err
	}
	return makePersistent(fd, final)
}

// openPatience is how long OpenFile waits for a queue that is open: a child that this process has just forked has the queue that
// made the device, until it runs its program.
const openPatience = 500 * time.Millisecond

// OpenFile opens a queue of the persistent TUN device of that name with water,
// which leaks its file until the next garbage collection if TUNSETIFF fails: the device must be there.
func OpenFile(name string, multi bool) (*os.File, error) {
	open := func() (*water.Interface, error) {
		return water.New(water.Config{
			DeviceType:             water.TUN,
			PlatformSpecificParams: water.PlatformSpecificParams{Name: name, Persist: true, MultiQueue: multi},
		})
	}
	w, err := open()
	for deadline := time.Now().Add(openPatience); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); w, err = open() {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	file, ok := w.ReadWriteCloser.(*os.File)
	if !ok {
		w.Close()
		return nil, fmt.Errorf("attach to %s: water gave a %T, not a file", name, w.ReadWriteCloser)
	}
	// Child processes must not inherit the queue: they would keep it busy.
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { unix.CloseOnExec(int(fd)) })
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	return file, nil
}

// The offloads of TUNSETOFFLOAD (linux/if_tun.h).
const (
	USO = unix.TUN_F_USO4 | unix.TUN_F_USO6 // UDP superpackets, Linux 6.2; one of them alone is refused
	TSO = unix.TUN_F_TSO4 | unix.TUN_F_TSO6
)

// SetOffloads sets the length of the vnet header and the offloads, and returns
// those that the kernel has. They are the device's and outlive the process.
func SetOffloads(fd int, gso bool) (mask int, err error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeaderLen); err != nil {
		return 0, os.NewSyscallError("ioctl TUNSETVNETHDRSZ", err)
	}
	masks := []int{unix.TUN_F_CSUM | TSO | unix.TUN_F_TSO_ECN | USO, unix.TUN_F_CSUM | TSO | unix.TUN_F_TSO_ECN,
		unix.TUN_F_CSUM | TSO, unix.TUN_F_CSUM, 0}
	if !gso {
		masks = masks[len(masks)-1:]
	}
	for _, mask = range masks {
		if err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, mask); err == nil {
			return mask, nil
		}
	}
	return 0, os.NewSyscallError("ioctl TUNSETOFFLOAD", err)
}

// EnsureNode makes the TUN character device if a container lacks it.
func EnsureNode(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // Make's open tells what is wrong with it
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = unix.Mknod(path, unix.S_IFCHR|0o666, int(node))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w (%w)", path, err, ErrNoTUN)
	}
	return nil
}

// Make makes the TUN device of that name if it is missing, and lets go of it. With persist the device stays.
func Make(name string, mode Mode, persist bool) error {
	fd, err := Attach(name, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !persist {
		return nil
	}
	return makePersistent(fd, name)
}

func makePersistent(fd int, name string) error {
	// Offloads outlive the process that asked for them; without a vnet header their
	// packets could not be told from ordinary ones.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0); err != nil {
		return fmt.Errorf("turn off offloads of %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make %s persistent: %w", name, err)
	}
	return nil
}

// openError tells why /dev/net/tun cannot be opened.
func openError(err error) error {
	why := ErrNoTUN
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		why = ErrNoModule
	}
	if info, serr := os.Stat(Path); serr == nil && errors.Is(err, unix.EACCES) {
		return fmt.Errorf("open %s, whose mode is %v, as user %d: %w (%w)", Path, info.Mode().Perm(), os.Geteuid(), why, err)
	}
	return fmt.Errorf("open %s: %w (%w)", Path, why, err)
}

// attachError tells why the device cannot be made or attached to.
func attachError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("make TUN device %s: %w (%w)", name, ErrDeviceBusy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("make TUN device %s: %w (%w)", name, ErrPermission, err)
	}
	return fmt.Errorf("make TUN device %s: %w", name, err)
}
