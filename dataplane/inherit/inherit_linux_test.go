package inherit

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/udp"
)

var (
	local = netip.MustParseAddrPort("127.0.0.1:8472")
	mode  = tun.Mode{Vnet: true}
)

// queue attaches to a TUN device, which goes with its last queue.
func queue(t *testing.T, ns *netnstest.NS, name string, m tun.Mode) *os.File {
	t.Helper()
	var fd int
	ns.Must(func() (err error) { fd, err = tun.Attach(name, m); return err })
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

// socket opens a UDP socket.
func socket(t *testing.T, ns *netnstest.NS, at netip.AddrPort) *os.File {
	t.Helper()
	var fd int
	ns.Must(func() (err error) { fd, err = udp.Open(at, 0); return err })
	f := os.NewFile(uintptr(fd), at.String())
	t.Cleanup(func() { f.Close() })
	return f
}

// TestTake: whatever comes under the names that fit is looked at.
func TestTake(t *testing.T) {
	ns, elsewhere := netnstest.New(t), netnstest.New(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	good, goodSocket := queue(t, ns, "flannel.1", mode), socket(t, ns, local)
	dead := queue(t, ns, "flannel.9", mode)
	ns.Run("ip", "link", "del", "flannel.9")
	connected := socket(t, elsewhere, netip.MustParseAddrPort("127.0.0.1:8473"))
	elsewhere.Must(func() error {
		return unix.Connect(int(connected.Fd()), &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9})
	})
	var l net.Listener
	ns.Must(func() (err error) { l, err = net.Listen("tcp", local.String()); return err })
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, test := range map[string]struct {
		queue, socket *os.File
		want          string // part of the error
	}{
		"both fit":                   {good, goodSocket, ""},
		"a file is no queue":         {null, goodSocket, "not a queue of a TUN device"},
		"a socket is no queue":       {goodSocket, goodSocket, "not a queue of a TUN device"},
		"of another device":          {queue(t, ns, "flannel.2", mode), goodSocket, `it is a queue of "flannel.2"`},
		"of a device that is gone":   {dead, goodSocket, "not a queue of a TUN device"},
		"of another mode":            {queue(t, elsewhere, "flannel.1", tun.Mode{}), goodSocket, "has the mode"},
		"in another namespace":       {queue(t, netnstest.New(t), "flannel.1", mode), goodSocket, "another network namespace"},
		"a file is no socket":        {good, null, "SO_TYPE"},
		"a TCP socket":               {good, listener, "SO_TYPE"},
		"a queue is no socket":       {good, good, "SO_TYPE"},
		"of another port":            {good, socket(t, ns, netip.MustParseAddrPort("127.0.0.1:8474")), "bound to 127.0.0.1:8474"},
		"a socket that is connected": {good, connected, "8473"},
		"a socket from elsewhere":    {good, socket(t, elsewhere, local), "another network namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			exports := []carrier.Export{
				{Name: QueueName(1), Flags: Flags(3, mode), Version: carrier.ExportVersion, File: test.queue},
				{Name: SocketName(local), Version: carrier.ExportVersion, File: test.socket},
			}
			w := Want{VNI: 1, Device: true, Offloads: 3, Locals: []netip.AddrPort{local}, Pairs: func(bool) int { return 1 }}
			var f *Files
			var left []carrier.Export
			var err error
			ns.Must(func() error { f, left, err = Take(exports, w); return nil })
			kept := 0
			for _, e := range exports {
				kept += len(f.Of(e.Name))
			}
			if kept+len(left) != len(exports) || (len(left) > 0) != (err != nil) {
				t.Errorf("%d files are kept and %d left, with %v", kept, len(left), err)
			}
			switch {
			case test.want == "" && (err != nil || len(f.Of(QueueName(1))) != 1 || f.Mode != mode):
				t.Errorf("got %+v, %v", f, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestTakeUplink: an uplink is taken with the sockets of its address only, and one that is left is no error.
func TestTakeUplink(t *testing.T) {
	ns := netnstest.New(t)
	other := netip.MustParseAddrPort("127.0.0.1:8474")
	file, uplink := socket(t, ns, local), os.Stdin // whatever it is: the carrier checks it
	for name, test := range map[string]struct {
		change func(w *Want, exports *[]carrier.Export)
		want   bool
	}{
		"it fits":             {func(*Want, *[]carrier.Export) {}, true},
		"of another address":  {func(_ *Want, e *[]carrier.Export) { (*e)[0].Name = carrier.UplinkName(other) }, false},
		"of another version":  {func(_ *Want, e *[]carrier.Export) { (*e)[0].Version++ }, false},
		"without a socket":    {func(_ *Want, e *[]carrier.Export) { *e = (*e)[:1] }, false},
		"no uplink is wanted": {func(w *Want, _ *[]carrier.Export) { w.Tunnel = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			exports := []carrier.Export{
				{Name: carrier.UplinkName(local), Version: carrier.ExportVersion, File: uplink},
				{Name: SocketName(local), Version: carrier.ExportVersion, File: file},
			}
			w := Want{Tunnel: true, Locals: []netip.AddrPort{local}, Pairs: func(bool) int { return 1 }}
			test.change(&w, &exports)
			var f *Files
			var left []carrier.Export
			var err error
			ns.Must(func() error { f, left, err = Take(exports, w); return nil })
			if got := f.Uplink(local); err != nil || (got == uplink) != test.want || (len(left) == 0) != test.want {
				t.Errorf("taken: %v, %d are left, %v", got, len(left), err)
			}
		})
	}
}

// TestVNI: the names of queues, and no others, tell a VNI.
func TestVNI(t *testing.T) {
	for name, want := range map[string]int{
		"tun flannel.1": 1, "tun flannel.16777215": 16777215, "tun flannel.16777216": -1, "tun flannel.01": -1, "tun flannel.-1": -1,
		"udp 127.0.0.1:1": -1, "tun eth0.1": -1, "": -1,
	} {
		got, ok := VNI(name)
		if ok != (want >= 0) || ok && int(got) != want {
			t.Errorf("%q: %d, %v", name, got, ok)
		}
	}
}
