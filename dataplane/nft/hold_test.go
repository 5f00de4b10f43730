package nft

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestHeldPorts: no socket of held tables has the port ID of an earlier one, or that of the process, which the kernel gives again as soon as it is free (dialApart).
func TestHeldPorts(t *testing.T) {
	ns := netnstest.New(t)
	seen := map[uint32]bool{uint32(os.Getpid()): true}
	for range 3 {
		var h *Held
		ns.Must(func() (err error) { h, err = Hold(NewOwnedTable(Netdev, "held")); return err })
		raw, err := h.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var at unix.Sockaddr
		if cerr := raw.Control(func(fd uintptr) { at, err = unix.Getsockname(int(fd)) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		port := at.(*unix.SockaddrNetlink).Pid
		if seen[port] {
			t.Errorf("port ID %d again", port)
		}
		seen[port] = true
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
