package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Dir is where daemons claim devices, whatever their subnet files: on a volume that daemons
// in containers share with their host, as they share the subnet file.
const Dir = "/run/flannel/overlayd"

// Device is the claim of one daemon to the overlay device of a VNI in one network namespace:
// a lock on a file named after both. It is held until another device is wanted, also
// between two sessions.
type Device struct {
	VNI  uint32
	file *os.File
}

// Devices makes claims in the first of its directories that it may use.
type Devices struct{ Dirs []string }

// Beside claims devices for daemons with this subnet file. A daemon that may not write to
// Dir, as in a user namespace, claims them beside its subnet file.
func Beside(subnetFile string) Devices {
	return Devices{[]string{Dir, filepath.Join(filepath.Dir(subnetFile), filepath.Base(Dir))}}
}

// ErrNoDir says that this process can claim no devices.
var ErrNoDir = errors.New("no directory for claims of devices")

// Claim claims the device of a VNI in the network namespace of the calling thread. ServedError:
// another daemon has it.
func (d Devices) Claim(vni uint32) (*Device, error) {
	netns, err := NetNS()
	if err != nil {
		return nil, err
	}
	f, err := d.open(netns, vni)
	if errors.Is(err, os.ErrNotExist) { // a cleanup has removed the directory meanwhile
		f, err = d.open(netns, vni)
	}
	if errors.Is(err, errLocked) {
		return nil, &ServedError{vni}
	}
	if err != nil {
		return nil, fmt.Errorf("claim device %s: %w", dataplane.DeviceName(vni), err)
	}
	return &Device{vni, f}, nil
}

// open opens and locks the file of a claim, in the first directory that is usable and has room for it.
func (d Devices) open(netns uint64, vni uint32) (*os.File, error) {
	errs := []error{ErrNoDir}
	for _, dir := range d.Dirs {
		err := usable(dir)
		if err == nil {
			var f *os.File
			f, err = Open(filepath.Join(dir, fmt.Sprintf("%d.%d", netns, vni)))
			if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
				return f, err
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ServedError says that another daemon serves the device of a VNI.
type ServedError struct{ VNI uint32 }

// Error implements error.
func (e *ServedError) Error() string {
	if e.VNI > dataplane.MaxDeviceVNI { // of a network without a device
		return "another overlayd in this network namespace serves a network with these addresses: stop it, or give this one a prefix and addresses of its own"
	}
	return fmt.Sprintf("another overlayd in this network namespace serves %s: stop it, or give this one a prefix and VNI of its own", dataplane.DeviceName(e.VNI))
}

// IsLost reports whether the file of the claim has lost its name, as by rm: another process could claim the device.
func (c *Device) IsLost() bool { return !IsAt(c.file, c.file.Name()) }

// Release ends the claim.
func (c *Device) Release() {
	if c == nil {
		return
	}
	if !c.IsLost() {
		os.Remove(c.file.Name()) // still locked: whoever opened it before sees that it has gone
	}
	Close(c.file)
}

// usable makes a directory unless it exists, and refuses one in which somebody else can write, or this process cannot.
func usable(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil || errors.Is(err, os.ErrExist) {
		err = checkOwner(dir)
	}
	return err
}

// checkOwner refuses a directory in which another user can write.
func checkOwner(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 || owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%s: want a directory of this user in which nobody else can write", dir)
	}
	return unix.Access(dir, unix.W_OK)
}

// NetNS is the inode of the network namespace of the calling thread.
func NetNS() (uint64, error) {
	ino, err := NetNSOf("/proc/thread-self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("find the network namespace: %w", err)
	}
	return ino, nil
}

// NetNSOf is the inode of the network namespace whose file is at path.
func NetNSOf(path string) (uint64, error) {
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return s.Ino, err
}

// files lists the files of claims in the network namespace of the calling thread, and their VNIs.
func (d Devices) files() (files map[string]uint32, err error) {
	netns, err := NetNS()
	if err != nil {
		return nil, err
	}
	files = map[string]uint32{}
	for _, dir := range d.Dirs {
		found, _ := filepath.Glob(filepath.Join(dir, fmt.Sprint(netns, ".*"))) // the pattern is well-formed
		for _, file := range found {
			text := strings.TrimPrefix(filepath.Base(file), fmt.Sprint(netns, "."))
			if vni, err := strconv.ParseUint(text, 10, 24); err == nil {
				files[file] = uint32(vni)
			}
		}
	}
	return files, nil
}

// Served lists the devices that daemons serve in the network namespace of the calling thread.
func (d Devices) Served() (names []string, err error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	for file, vni := range files {
		held, err := isHeld(file)
		if err != nil {
			return nil, err
		}
		if held {
			names = append(names, dataplane.DeviceName(vni))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Forget removes the claims of daemons that were killed, and the directories if nobody needs them.
func (d Devices) Forget() error {
	files, err := d.files()
	if err != nil {
		return err
	}
	for file, vni := range files {
		if f, err := Open(file); err == nil {
			(&Device{vni, f}).Release()
		}
	}
	for _, dir := range d.Dirs {
		os.Remove(dir) // unless it has the claims of other network namespaces
	}
	return nil
}

// isHeld reports whether a process holds the claim that is this file.
func isHeld(path string) (bool, error) {
	f, err := hostfile.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	h, err := HolderOf(f)
	return h.Held && !h.Reader, err
}

// ReleaseAll gives up several claims.
func ReleaseAll(claims []*Device) {
	for _, d := range claims {
		d.Release()
	}
}
