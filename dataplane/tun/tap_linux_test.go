package tun

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestTakeTunnelTAP: only a file of OpenTunnelTAP is taken, whatever comes under its name, and no other device is changed.
func TestTakeTunnelTAP(t *testing.T) {
	const name, buffer = "ovl.up%d", 1 << 20
	ns, elsewhere := netnstest.New(t), netnstest.New(t)
	open := func(ns *netnstest.NS, name string) *os.File {
		t.Helper()
		var f *os.File
		err := ns.Do(func() (err error) { f, _, err = OpenTunnelTAP(name, buffer); return err })
		if err != nil && strings.Contains(err.Error(), "TUNSETOFFLOAD") {
			netnstest.Lacks(t, "kernel with the tunnel offload (Linux 6.17)")
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	good, dead := open(ns, name), open(ns, name)
	ns.Run("ip", "link", "del", dead.Name())
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var queue int
	ns.Must(func() (err error) { queue, err = Attach("ovl.up7", Mode{Vnet: true}); return err })
	other := os.NewFile(uintptr(queue), "ovl.up7")
	defer other.Close()
	for what, test := range map[string]struct {
		file *os.File
		want string // part of the error; empty: it is taken
	}{
		"it fits":               {good, ""},
		"a device that is gone": {dead, "not a queue of a TUN device"},
		"a file":                {null, "not a queue of a TUN device"},
		"another device":        {open(ns, "tap%d"), `it is a queue of "tap0"`},
		"a TUN device":          {other, "has the mode"},
		"in another namespace":  {open(elsewhere, name), "another network namespace"},
	} {
		t.Run(what, func(t *testing.T) {
			var file *os.File
			var device string
			err := ns.Do(func() (err error) { file, device, err = TakeTunnelTAP(test.file, name, buffer); return err })
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				return
			}
			if err != nil || device != test.file.Name() {
				t.Fatalf("got %q, %v", device, err)
			}
			defer file.Close()
			if n, err := unix.IoctlGetInt(int(file.Fd()), unix.TUNGETVNETHDRSZ); err != nil || n != TunnelHeaderLen {
				t.Errorf("header of %d bytes, %v", n, err)
			}
			if link := ns.Run("ip", "-d", "link", "show", device); !strings.Contains(link, " user root ") {
				t.Errorf("no owner: %s", link)
			}
		})
	}
}
