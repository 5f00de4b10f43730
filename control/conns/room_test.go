package conns

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestMakeRoom: a crowd of connections of another user to a store is ended, few are not, and those of this user never are.
func TestMakeRoom(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	for _, n := range []int{crowd, crowd / 2} {
		h := netnstest.New(t)
		store := netip.MustParseAddrPort("127.0.0.1:900")
		var l net.Listener
		h.Must(func() (err error) { l, err = net.Listen("tcp", store.String()); return err })
		defer l.Close()
		ended := make(chan struct{}, 2*crowd)
		begun := make(chan struct{}, 2*crowd)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				begun <- struct{}{}
				go func() { c.Read(make([]byte, 1)); c.Close(); ended <- struct{}{} }()
			}
		}()
		var own net.Conn
		h.Must(func() (err error) { own, err = net.Dial("tcp", store.String()); return err })
		defer own.Close()
		var conns []net.Conn
		for range n {
			h.Must(func() error {
				c, err := (&net.Dialer{Control: owned}).Dial("tcp", store.String())
				conns = append(conns, c)
				return err
			})
		}
		for range n + 1 {
			<-begun
		}
		var log netnstest.Log
		d := &Dialer{Log: slog.New(slog.NewTextHandler(&log, nil))}
		h.Must(func() error { d.MakeRoom(t.Context(), store); return nil })
		for i := range n {
			if n < crowd {
				break
			}
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Fatalf("%d of %d connections have ended:\n%s", i, n, &log)
			}
		}
		time.Sleep(50 * time.Millisecond) // nothing more may end
		if len(ended) > 0 || log.Count("where another user has them: ended") != n/crowd {
			t.Errorf("%d connections: %d more have ended:\n%s", n, len(ended), &log)
		}
		for _, c := range conns {
			c.Close()
		}
	}
}

// TestMakeRoomSaysItAgain: a crowd that comes back after a minute is logged again, one that comes back at once is not.
func TestMakeRoomSaysItAgain(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	h := netnstest.New(t)
	store := netip.MustParseAddrPort("127.0.0.1:900")
	var l net.Listener
	h.Must(func() (err error) { l, err = net.Listen("tcp", store.String()); return err })
	defer l.Close()
	var log netnstest.Log
	d := &Dialer{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for i, want := range []int{1, 1, 2} {
		if i == 2 {
			d.crowded.Store(time.Now().Unix() - crowdAgain)
		}
		for range crowd {
			h.Must(func() error {
				c, err := (&net.Dialer{Control: owned}).Dial("tcp", store.String())
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			})
		}
		h.Must(func() error { d.MakeRoom(t.Context(), store); return nil })
		if n := log.Count("where another user has them: ended"); n != want {
			t.Errorf("crowd %d: logged %d times, want %d:\n%s", i, n, want, &log)
		}
	}
}

// owned gives a socket to another user (fchown(2)).
func owned(_, _ string, conn syscall.RawConn) (err error) {
	broken := conn.Control(func(fd uintptr) { err = unix.Fchown(int(fd), 65534, 65534) })
	return errors.Join(broken, err)
}
