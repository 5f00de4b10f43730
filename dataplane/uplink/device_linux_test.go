package uplink

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	conn, err := in.SyscallConn() // not for writing
	if err != nil {
		t.Fatal(err)
	}
	u := &Uplink{cfg: Config{Local: netip.MustParseAddr("192.0.2.1")}}
	u.device.Store(&device{name: "ovl.up7", file: in, conn: conn})
	if err := u.try(); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "ovl.up7") {
		t.Errorf("got %v", err)
	}
}

// TestWritersDoNotWait: a worker writes a frame while another one is in the middle of a write.
func TestWritersDoNotWait(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	conn, err := out.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	u, way, d := &Uplink{}, &Way{}, &device{file: out, conn: conn}
	u.device.Store(d)
	way.device.Store(d)
	within, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() { ended <- conn.Write(func(uintptr) bool { close(within); <-end; return true }) }()
	<-within
	written := make(chan unix.Errno)
	go func() { written <- u.NewWriter().Write(way, []byte("frame")) }()
	select {
	case errno := <-written:
		if errno != 0 {
			t.Error(errno)
		}
	case <-time.After(10 * time.Second):
		t.Error("a worker waits for another one")
		go func() { <-written }()
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
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
