package conns

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestPortsTaken: a user of the host who has every port of it, also with a connection to the store from each one, keeps no
// store from being reached. The log names that once.
func TestPortsTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, store string
		connected   bool
	}{
		{"IPv4", "127.0.0.1:900", false},
		{"IPv6", "[::1]:900", false},
		{"IPv4, connected", "127.0.0.1:900", true},
		{"IPv6, connected", "[::1]:900", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := netnstest.New(t)
			var log netnstest.Log
			d := &Dialer{Log: slog.New(slog.NewTextHandler(&log, nil))}
			dial := func(dial func() (net.Conn, error)) error {
				return h.Do(func() error {
					c, err := dial()
					if err != nil {
						return err
					}
					t.Cleanup(func() { c.Close() })
					_, err = c.Write([]byte("x"))
					if err == nil {
						_, err = c.Read(make([]byte, 1))
					}
					return err
				})
			}
			plain := func() (net.Conn, error) { return new(net.Dialer).DialContext(t.Context(), "tcp", tt.store) }
			sharing := func() (net.Conn, error) { return d.DialContext(t.Context(), "tcp", tt.store) }
			var serves atomic.Bool // until then the store closes connections: the user still has them
			h.Must(func() error { return listen(t, tt.store, &serves) })
			connected := ""
			if tt.connected {
				connected = tt.store
			}
			free := h.TakePorts(t, connected)
			serves.Store(true)
			if err := dial(plain); !errors.Is(err, unix.EADDRNOTAVAIL) {
				t.Fatalf("there are ports left: %v", err)
			}
			for range 3 {
				if err := dial(sharing); err != nil {
					t.Error(err)
				}
			}
			if err := dial(func() (net.Conn, error) { return d.dialNameServer(t.Context(), "udp", tt.store) }); err != nil {
				t.Errorf("name server: %v", err)
			}
			if n := log.Count("every TCP port of this host is taken"); n != 1 {
				t.Errorf("%d lines of it:\n%s", n, &log)
			}
			free()
			if err := dial(sharing); err != nil || d.taken.Load() {
				t.Errorf("then: %v", err)
			}
		})
	}
}

// listen serves at an address what comes.
func listen(t *testing.T, address string, serves *atomic.Bool) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !serves.Load() {
				c.Close() // at once: this process may have fewer files than the users have ports
				continue
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	return nil
}
