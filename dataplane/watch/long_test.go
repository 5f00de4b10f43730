package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A notification that is longer than the buffer is as one that was lost: there is a look, and the next one of that length is read whole.
func TestLongNotification(t *testing.T) {
	const group, length = 1, 3 * readBuffer
	ns, s := open(t, Groups{Protocol: unix.NETLINK_USERSOCK, Must: []int{group}})
	send := func() {
		ns.Must(func() error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			b := make([]byte, length)
			binary.NativeEndian.PutUint32(b, length)
			err = unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)})
			if errors.Is(err, unix.ECONNREFUSED) { // the group has it; no kernel does
				return nil
			}
			return err
		})
	}
	var forgotten, longest atomic.Int32
	looked, l := looks()
	l.Concerns = func(_ unix.NlMsghdr, body []byte) bool { longest.Store(int32(len(body))); return true }
	l.Forget = func() { forgotten.Add(1) }
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, s, l)
	for forgotten.Load() < 2 { // the buffer doubles twice
		send()
		await(t, "a look", looked)
	}
	send()
	await(t, "a look after one that fits", looked)
	if n := longest.Load(); n != length-unix.SizeofNlMsghdr || forgotten.Load() != 2 {
		t.Errorf("read %d bytes of %d, forgot %d times", n, length-unix.SizeofNlMsghdr, forgotten.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
