package node

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
)

// claimDir is where daemons claim devices, whatever their subnet files: on a volume that daemons
// in containers share with their host, as they share the subnet file.
const claimDir = "/run/flannel/overlayd"

// deviceClaim is the claim of one daemon to the overlay device of a VNI in one network namespace:
// a lock (lock.go) on a file named after both. It is held until another device is wanted, also
// between two sessions.
type deviceClaim struct {
	vni  uint32
	file *os.File
}

// devices makes claims in the first of its directories that it may use.
type devices struct{ dirs []string }

// devicesBeside claims devices for daemons with this subnet file. A daemon that may not write to
// claimDir, as in a user namespace, claims them beside its subnet file.
func devicesBeside(subnetFile string) devices {
	return devices{[]string{claimDir, filepath.Join(filepath.Dir(subnetFile), filepath.Base(claimDir))}}
}

// errNoClaimDir says that this process can claim no devices.
var errNoClaimDir = errors.New("no directory for claims of devices")

// claim claims the device of a VNI in the network namespace of the calling thread. ServedError:
// another daemon has it.
func (d devices) claim(vni uint32) (*deviceClaim, error) {
	netns, err := netnsID()
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
	return &deviceClaim{vni, f}, nil
}

// open opens and locks the file of a claim.
func (d devices) open(netns uint64, vni uint32) (*os.File, error) {
	dir, err := d.usable()
	if err != nil {
		return nil, err
	}
	return openLocked(filepath.Join(dir, fmt.Sprintf("%d.%d", netns, vni)))
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

// release ends the claim.
func (c *deviceClaim) release() {
	if c == nil {
		return
	}
	os.Remove(c.file.Name()) // still locked: whoever opened it before sees that it has gone
	c.file.Close()
}

// usable returns the first directory that exists or can be made, and in which nobody else can write.
func (d devices) usable() (string, error) {
	errs := []error{errNoClaimDir}
	for _, dir := range d.dirs {
		err := os.MkdirAll(filepath.Dir(dir), 0o755)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err == nil || errors.Is(err, os.ErrExist) {
			err = checkOwner(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
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

// netnsID is the inode of the network namespace of the calling thread.
func netnsID() (uint64, error) {
	ino, err := inode("/proc/thread-self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("find the network namespace: %w", err)
	}
	return ino, nil
}

func inode(path string) (uint64, error) {
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return s.Ino, err
}

// files lists the files of claims in the network namespace of the calling thread, and their VNIs.
func (d devices) files() (files map[string]uint32, err error) {
	netns, err := netnsID()
	if err != nil {
		return nil, err
	}
	files = map[string]uint32{}
	for _, dir := range d.dirs {
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

// served lists the devices that daemons serve in the network namespace of the calling thread.
func (d devices) served() (names []string, err error) {
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

// forget removes the claims of daemons that were killed, and the directories if nobody needs them.
func (d devices) forget() error {
	files, err := d.files()
	if err != nil {
		return err
	}
	for file, vni := range files {
		if f, err := openLocked(file); err == nil {
			(&deviceClaim{vni, f}).release()
		}
	}
	for _, dir := range d.dirs {
		os.Remove(dir) // unless it has the claims of other network namespaces
	}
	return nil
}

// isHeld reports whether a process holds the claim that is this file.
func isHeld(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	h, err := holderOf(f)
	return h.held && !h.reader, err
}
