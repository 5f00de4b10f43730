package controller

import (
	"bufio"
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestLeasesFileHasIncumbents: a daemon that starts again knows who had what, and nothing of leases that are refused.
func TestLeasesFileHasIncumbents(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/8","SubnetLen":26}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}
	of := func(i int, network byte) control.Lease {
		subnet, public := netip.AddrFrom4([4]byte{network, 0, byte(i), 0}), address(192<<24+168<<16+i)
		return control.Lease{Subnet: netip.PrefixFrom(subnet, 26), PublicIP: public, BackendType: control.BackendVXLAN,
			Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(i)}
	}
	f := newFollower(New(cfg))
	self := of(1, 10)
	f.c.setLease(self, func(*Stats) {})
	f.apply(t.Context(), []control.Update{{Reset: true, Leases: []control.Lease{self, of(2, 10), of(3, 10), of(4, 11)}}})
	f.sync(t.Context())
	f.writeLeases(t.Context())
	again := newFollower(New(cfg))
	was, is := f.rib.Incumbents(), again.rib.Incumbents()
	for i := range was.Peers {
		was.Peers[i].Subnets = nil
	}
	if len(was.Peers) != 2 || !reflect.DeepEqual(was, is) {
		t.Errorf("knows %+v, want %+v", is, was)
	}
	if all, _ := again.rib.Len(); all != 3 {
		t.Errorf("remembers %d leases, want those that may be used", all)
	}
}

// TestLeasesFileIsNoFile: a daemon starts beside a FIFO in the place of the leases file, says so, and puts a file there.
func TestLeasesFileIsNoFile(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/8","SubnetLen":26}`))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cfg := Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}
	path := LeasesFile(cfg.SubnetFile)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFollower(New(cfg))
	if text := log.String(); !strings.Contains(text, "leases file not read") || !strings.Contains(text, path+": want a regular file, not a FIFO") {
		t.Errorf("logs %q", text)
	}
	f.whole = true
	f.writeLeases(t.Context())
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
}

// TestLeasesFileFaultStaysTheSame: a file that cannot be written is one fault, however often it is tried: the temporary names are not in it.
func TestLeasesFileFaultStaysTheSame(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leases")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := replaceFile(path, func(*bufio.Writer) {}); err == nil || err.Error() != "write "+path+": file exists" {
			t.Error(err)
		}
	}
}
