package carrier

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// refusingConn is a socket that takes no option for now.
type refusingConn struct{ syscall.RawConn }

func (refusingConn) Control(func(uintptr)) error { return unix.ENOMEM }

// TestFilterOfSeveralSockets has the first of three sockets refuse what is wanted. The others do it, and the first one does it the next time.
func TestFilterOfSeveralSockets(t *testing.T) {
	t.Parallel()
	one, two := &Filter{VNIs: []uint32{1}}, &Filter{VNIs: []uint32{1, 2}}
	for name, tt := range map[string]struct{ before, wanted *Filter }{"begins": {nil, one}, "changes": {one, two}, "ends": {one, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c *udpCarrier
			cfg := UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddrPort("127.0.0.1:8472")}
			netnstest.New(t).Must(func() (err error) { c, err = openUDPCarrier(cfg, cfg.Local, 3); return err })
			defer c.Close()
			if err := c.SetFilter(tt.before); err != nil {
				t.Fatal(err)
			}
			before, first := filterLens(t, c), c.in[0].now
			conn := first.conn
			first.conn = refusingConn{conn}
			if err := c.SetFilter(tt.wanted); !errors.Is(err, unix.ENOMEM) {
				t.Errorf("the first socket refuses: %v", err)
			}
			first.conn = conn
			got := filterLens(t, c)
			n := got[1]
			if want := []int{before[0], n, n}; n == before[1] || (n == 0) != (tt.wanted == nil) || !slices.Equal(got, want) {
				t.Errorf("the first socket refuses: the filters are as long as %d, before as %d", got, before)
			}
			if err := c.SetFilter(tt.wanted); err != nil {
				t.Error(err)
			}
			if got := filterLens(t, c); !slices.Equal(got, []int{n, n, n}) {
				t.Errorf("again: the filters are as long as %d", got)
			}
		})
	}
}

// filterLens returns the number of instructions in the filter of each socket; 0: the socket has no filter.
func filterLens(t *testing.T, c *udpCarrier) (lens []int) {
	t.Helper()
	for _, r := range c.in {
		n := uint32(unix.BPF_MAXINSNS)
		code := make([]unix.SockFilter, n)
		if err := r.now.setup(func(fd int) error {
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_GET_FILTER, uintptr(unsafe.Pointer(&code[0])), uintptr(unsafe.Pointer(&n)), 0)
			if errno != 0 {
				return os.NewSyscallError("getsockopt SO_GET_FILTER", errno)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		lens = append(lens, int(n))
	}
	return lens
}
