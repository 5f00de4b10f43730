package handover

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// Keeper is the service manager, which keeps open files for this daemon until it starts it again: systemd's file
// descriptor store (sd_notify(3), FDSTORE=1), of which a unit has to allow as many as there are. What the kernel
// queues meanwhile, in a TUN queue or at a socket, waits there. A nil Keeper keeps nothing.
type Keeper struct {
	log    *slog.Logger
	socket string        // of the service manager
	room   int           // how many files it keeps; as far as is known
	within time.Duration // how long it may take for a message

	mu   sync.Mutex
	kept map[string]string // names of exports by those that the service manager knows
	over bool              // nothing is to be kept any more
}

// roomUnknown is the room of a service manager that does not tell (systemd before 254).
const roomUnknown = 1 << 16

// OpenKeeper returns the service manager of this process and the files that it has kept. Without a service manager the Keeper is nil.
// It changes the environment: what was kept is not for child processes.
func OpenKeeper(log *slog.Logger) (*Keeper, []carrier.Export) {
	files := activation.Files(true)
	k := &Keeper{log: log, socket: os.Getenv("NOTIFY_SOCKET"), room: roomUnknown, within: patience, kept: map[string]string{}}
	if n, err := strconv.Atoi(os.Getenv("FDSTORE")); err == nil {
		k.room = n
	}
	left := k.receive(files)
	if k.socket == "" {
		return nil, left
	}
	if err := k.Remove(unknown); err != nil {
		log.Warn("the service manager may keep files open that nobody reads", "err", err)
	}
	return k, left
}

// unknown stands for the names of files that are not overlayd's, or of a version that names them in another way.
const unknown = "unknown"

// receive returns what the files are that an earlier process has put into the store, and closes the others.
func (k *Keeper) receive(files []*os.File) (exports []carrier.Export) {
	var all []keptFile
	for _, f := range files {
		kept, err := parseKept(f)
		f.Close() // kept has a duplicate
		if err != nil {
			k.log.Warn("the service manager has handed over a file that is not overlayd's: closed", "name", f.Name(), "err", err)
			k.kept[f.Name()] = unknown
			continue
		}
		all = append(all, kept)
	}
	slices.SortStableFunc(all, keptFile.compare) // a service manager keeps no order
	for i, f := range all {
		k.kept[f.id] = f.Name
		if i > 0 && f.compare(all[i-1]) == 0 {
			k.log.Warn("the service manager has handed over two files of one name: one is closed", "name", f.name())
			f.File.Close()
			continue
		}
		exports = append(exports, f.Export)
	}
	return exports
}

// Put has the service manager keep files until Remove, besides those that it has; what it has already
// under a name stays as it is. The files are the caller's. After an error the service manager keeps none of them. If it hangs, it may keep some until Remove.
func (k *Keeper) Put(exports []carrier.Export) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return nil
	}
	var fresh []keptFile
	for _, f := range keptFiles(exports) {
		if _, ok := k.kept[f.name()]; !ok {
			fresh = append(fresh, f)
		}
	}
	err := k.checkRoom(len(k.kept) + len(fresh))
	for _, f := range fresh {
		if err == nil {
			// Without FDPOLL=0 it would give up a socket that has an error to tell.
			if err = k.notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+f.name(), f.File); err == nil {
				k.kept[f.name()] = f.Name
			}
		}
	}
	if err != nil && !hangs(err) {
		_ = k.remove(carrier.NamesOf(exports))
	}
	return err
}

func (k *Keeper) checkRoom(n int) error {
	if n > k.room {
		return fmt.Errorf("the service manager keeps %d files, and there are %d: set FileDescriptorStoreMax=%d", k.room, n, n)
	}
	return nil
}

// Remove has the service manager close the files of exports with these names. It returns when it has.
func (k *Keeper) Remove(names ...string) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.remove(names)
}

// End has the service manager close all files, and keep none from now on. After an error it may keep files again.
func (k *Keeper) End() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, name := range k.kept {
		all = append(all, name)
	}
	err := k.remove(all)
	k.over = err == nil // after an error the daemon goes on
	return err
}

// hangs reports whether the service manager has taken no message: then it takes no other one either, and whoever tells it may hold up packets.
func hangs(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

// remove is Remove. What the service manager was not told of counts as kept: a later Remove tells it.
func (k *Keeper) remove(names []string) error {
	var errs []error
	removed := false
	for id, name := range k.kept {
		if !slices.Contains(names, name) {
			continue
		}
		err := k.notify("FDSTOREREMOVE=1\nFDNAME="+id, nil)
		if hangs(err) {
			return errors.Join(append(errs, err)...)
		}
		if err == nil {
			delete(k.kept, id)
			removed = true
		}
		errs = append(errs, err)
	}
	if removed {
		errs = append(errs, k.barrier())
	}
	return errors.Join(errs...)
}

// barrier returns when the service manager has done all that it was told: then it closes the file that comes with
// the message, and so does one that does not know the message (before systemd 246).
func (k *Keeper) barrier() error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	err = k.notify("BARRIER=1", out)
	out.Close()
	if err != nil {
		return err
	}
	if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := in.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service manager does not close its files: %w", err)
	}
	return nil
}

// notify sends a message of sd_notify(3), with a file unless that is nil.
func (k *Keeper) notify(text string, f *os.File) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(k.within.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return os.NewSyscallError("setsockopt SO_SNDTIMEO", err)
	}
	var oob []byte
	if f != nil {
		oob = unix.UnixRights(int(f.Fd()))
	}
	deadline := time.Now().Add(k.within)
	err = unix.Sendmsg(fd, []byte(text), oob, &unix.SockaddrUnix{Name: k.socket}, unix.MSG_NOSIGNAL)
	for errors.Is(err, unix.EINTR) && time.Now().Before(deadline) { // by a signal of Go's scheduler
		err = unix.Sendmsg(fd, []byte(text), oob, &unix.SockaddrUnix{Name: k.socket}, unix.MSG_NOSIGNAL)
	}
	if err != nil {
		return fmt.Errorf("tell the service manager at %s: %w", k.socket, os.NewSyscallError("sendmsg", err))
	}
	return nil
}
