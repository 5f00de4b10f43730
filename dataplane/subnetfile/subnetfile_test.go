package subnetfile

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

func TestWriteSubnetFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "flannel", "subnet.env")
	dual := File{Network: prefix("10.6.0.0/16"), Subnet: prefix("10.6.10.0/24"),
		IPv6Network: prefix("fd10:6::/48"), IPv6Subnet: prefix("fd10:6:0:8::/64"), MTU: 1450, IPMasq: true}
	v4 := File{Network: dual.Network, Subnet: dual.Subnet, MTU: 8950}
	for _, tt := range []struct {
		file File
		want string
	}{
		{dual, "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.10.1/24\nFLANNEL_IPV6_NETWORK=fd10:6::/48\nFLANNEL_IPV6_SUBNET=fd10:6:0:8::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"},
		{v4, "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.10.1/24\nFLANNEL_MTU=8950\nFLANNEL_IPMASQ=false\n"},
	} {
		if err := Write(path, tt.file); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != tt.want {
			t.Errorf("file:\n%s(%v)\nwant:\n%s", got, err, tt.want)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o644 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
}

func TestWriteSubnetFileOnlyWhenItChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	f := File{Network: prefix("10.6.0.0/16"), Subnet: prefix("10.6.10.0/24"), MTU: 1450}
	if err := Write(path, f); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1000, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, f); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || !st.ModTime().Equal(old) {
		t.Errorf("written again: %v, %v", st.ModTime(), err)
	}
}

func TestWriteSubnetFileNamesThePath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Write(filepath.Join(file, "subnet.env"), File{})
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a folder: %v", err)
	}
}

func TestRemoveSubnetFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	if err := Write(path, File{Network: prefix("10.6.0.0/16"), Subnet: prefix("10.6.10.0/24"), MTU: 1450}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is gone is not an error
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("files left: %v", left)
		}
	}
	if err := Remove(filepath.Join(dir, "none", "subnet.env")); err != nil {
		t.Errorf("no folder: %v", err)
	}
	full := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Remove(full); err == nil || !strings.Contains(err.Error(), full) {
		t.Errorf("a folder that is not empty: %v", err)
	}
}

func TestReadSubnetFile(t *testing.T) {
	both := []netip.Prefix{prefix("10.6.10.0/24"), prefix("fd10:6:0:8::/64")}
	for _, tt := range []struct {
		name, text string
		want       []netip.Prefix
	}{
		{"own", string(File{Subnet: both[0], IPv6Subnet: both[1]}.Text()), both},
		{"quotes, export, comment, CRLF", "# x\r\n export FLANNEL_SUBNET = \"10.6.10.1/24\" # mine\r\nFLANNEL_IPV6_SUBNET='fd10:6:0:8::1/64'\r\n", both},
		{"junk lines", "\x00\xff\n=\nFLANNEL_SUBNET\nFLANNEL_SUBNET=10.6.10.1/24", both[:1]},
		{"a list", "FLANNEL_SUBNET=10.6.10.1/24,10.6.11.1/24\n", nil},
		{"no subnet", "FLANNEL_SUBNET=10.6.10.1\nFLANNEL_IPV6_SUBNET=\n", nil},
		{"the other family", "FLANNEL_SUBNET=fd10::1/64\nFLANNEL_IPV6_SUBNET=10.6.10.1/24\n", nil},
		{"a line that never ends", strings.Repeat("x", hostfile.MaxLen), nil},
		{"empty", "", nil},
	} {
		path := filepath.Join(t.TempDir(), "subnet.env")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path)
		if d := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, d)
		}
	}
	if got, err := Read(filepath.Join(t.TempDir(), "none")); got != nil || err != nil {
		t.Errorf("missing file: %v, %v", got, err)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a folder reads as a file")
	}
}

// TestWriteSubnetFileSaysOneFaultAlike: whoever logs what is new must not find each
// try new.
func TestWriteSubnetFileSaysOneFaultAlike(t *testing.T) {
	path := "/proc/subnet.env" // a folder that nobody can write to, not even root
	first := Write(path, File{})
	second := Write(path, File{})
	if first == nil || second == nil || first.Error() != second.Error() || !strings.Contains(first.Error(), path) {
		t.Errorf("got %v, then %v", first, second)
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// On a full disk every try fails with the same words, so that they are logged once, the old file stays, and
// nothing else does.
func TestFullDisk(t *testing.T) {
	dir := netnstest.SmallDisk(t, "size=16k")
	path := filepath.Join(dir, "subnet.env")
	f := File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), MTU: 1450}
	if err := Write(path, f); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "full"), make([]byte, 64<<10), 0o600) // as much as there is room for
	f.MTU = 1400
	first, second := Write(path, f), Write(path, f)
	if !errors.Is(first, unix.ENOSPC) || first.Error() != second.Error() {
		t.Errorf("got %v, then %v", first, second)
	}
	if got, err := os.ReadDir(dir); err != nil || len(got) != 2 {
		t.Errorf("%d files, %v", len(got), err)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "1450") {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestWriteInPlaceOfNoFile: what somebody has put in the place of the file is replaced as a file is, and is not read.
func TestWriteInPlaceOfNoFile(t *testing.T) {
	t.Parallel()
	f := File{Network: prefix("10.6.0.0/16"), Subnet: prefix("10.6.10.0/24"), MTU: 1450}
	for name, put := range map[string]func(path string) error{
		"FIFO":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"endless device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"socket":         func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
	} {
		k := Keeper{Path: filepath.Join(t.TempDir(), "subnet.env")}
		if err := errors.Join(k.Write(f), os.Remove(k.Path), put(k.Path)); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(k.Path); err == nil || !strings.Contains(err.Error(), k.Path+": want a regular file") {
			t.Errorf("%s: read: %v", name, err)
		}
		if restored, err := k.Restore(); !restored || err != nil {
			t.Errorf("%s: restored %v, %v", name, restored, err)
		}
		if text, err := os.ReadFile(k.Path); err != nil || string(text) != string(f.Text()) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
