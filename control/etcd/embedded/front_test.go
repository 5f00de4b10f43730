package embedded

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials/insecure"
)

// TestPortTaken: a server that is to wait for its port serves at its socket meanwhile, and at the port when that is free; it can be stopped
// before. One that is not to wait does not start.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		waits, free bool
	}{{"is freed", true, true}, {"stays taken", true, false}, {"is a mistake", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			dir, opened := t.TempDir(), make(chan struct{})
			s, err := Start(t.Context(), Config{Dir: dir, ListenClient: "http://" + l.Addr().String(), Prefix: "/p", NoFsync: true,
				Waits: func(err error) bool {
					if !errors.Is(err, unix.EADDRINUSE) {
						t.Errorf("asked because of %v", err)
					}
					return c.waits
				}, Opened: func() { close(opened) }})
			if (err == nil) != c.waits {
				t.Fatalf("start: %v", err)
			}
			if err != nil {
				if !errors.Is(err, ErrListen) {
					t.Errorf("%v is no %v", err, ErrListen)
				}
				return
			}
			const method = "/etcdserverpb.Maintenance/Status"
			if err := call(t, dial(t, "unix://"+filepath.Join(dir, socketName), insecure.NewCredentials()), method, false); err != nil {
				t.Errorf("at the socket: %v", err)
			}
			if c.free {
				l.Close()
				<-opened
				if err := call(t, dial(t, l.Addr().String(), insecure.NewCredentials()), method, false); err != nil {
					t.Errorf("at the port: %v", err)
				}
			}
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
