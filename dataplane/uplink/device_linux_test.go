package uplink

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// TestCloseDoesNotWait: a worker that gives up its device, and a daemon that ends, do not wait for the kernel. The close(2) of a TCP
// socket with SO_LINGER waits for its peer, as that of a TAP does for the kernel's lock of the network configuration.
func TestCloseDoesNotWait(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	out, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	file, err := out.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fill(t, out)
	out.Close()
	if err := unix.SetsockoptLinger(int(file.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}); err != nil {
		t.Fatal(err)
	}
	u := &Uplink{}
	d := &device{file: file}
	u.device.Store(d)
	closed := make(chan struct{})
	go func() { u.lose(d, unix.EIO); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("whoever gives up a device waits for the kernel")
	}
	in.Close() // with unread bytes: a reset, which ends the wait
	<-closed
}

// TestTryOfBadDevice has a device that takes nothing at all: the error of the first write says so.
func TestTryOfBadDevice(t *testing.T) {
	in, _ := pipe(t) // not for writing
	u := &Uplink{cfg: Config{Local: netip.MustParseAddr("192.0.2.1")}}
	u.device.Store(in)
	if err := u.try(); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "ovl.up7") {
		t.Errorf("got %v", err)
	}
}

// TestWritersDoNotWait: a worker writes a frame while another one is in the middle of a write.
func TestWritersDoNotWait(t *testing.T) {
	_, out := pipe(t)
	u, way := &Uplink{}, &Way{}
	u.device.Store(out)
	way.device.Store(out)
	within, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() { ended <- out.conn.Write(func(uintptr) bool { close(within); <-end; return true }) }()
	<-within
	written := make(chan unix.Errno, 1)
	go func() { written <- u.NewWriter().Write(way, []byte("frame")) }()
	select {
	case errno := <-written:
		if errno != 0 {
			t.Error(errno)
		}
	case <-time.After(10 * time.Second):
		t.Error("a worker waits for another one")
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLostRules: an uplink whose rules cannot be changed is made again, and the repair says why.
func TestLostRules(t *testing.T) {
	ns := netnstest.New(t)
	ns.Addr("lo", "192.0.2.1/24")
	ns.Must(func() error {
		u, err := Open(Config{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddr("192.0.2.1"), Port: 8472, TTL: 64})
		if err != nil {
			return err
		}
		defer u.Close()
		d := u.device.Load()
		if err := d.rules.Close(); err != nil {
			return err
		}
		u.commit(nft.DeleteHop(d.hops, netip.MustParseAddr("192.0.2.2")))
		if u.InUse() == nil {
			t.Error("the uplink is in use")
		}
		u.Hurry()
		u.Refresh(nil)
		if _, changes := u.Objects(); len(changes) != 1 || !strings.Contains(changes[0].Was, "change rules of "+d.name) {
			t.Errorf("changes %+v", changes)
		}
		return u.InUse()
	})
}

// pipe returns devices that are the ends of a pipe.
func pipe(t *testing.T) (in, out *device) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*device{{name: "ovl.up7", file: r}, {name: "ovl.up8", file: w}}
	for _, d := range ends {
		t.Cleanup(func() { d.file.Close() })
		if d.conn, err = d.file.SyscallConn(); err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

// fill writes until nothing more fits.
func fill(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	for err := error(nil); !errors.Is(err, os.ErrDeadlineExceeded); {
		if _, err = c.Write(make([]byte, 1<<20)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
}
