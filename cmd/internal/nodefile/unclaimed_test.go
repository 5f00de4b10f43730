package nodefile

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUnclaimed: a daemon whose node file cannot be made goes on with an ID, and has the file with that ID as soon as it can be.
func TestUnclaimed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(dir, "subnet.env")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	if _, err := Claim(file); err == nil {
		t.Fatal("claimed")
	}
	f := Unclaimed(file)
	if err := f.Settle(); err == nil || f.IsClaimed() || len(f.ID) != idLen || !f.IsNew {
		t.Errorf("%v, claimed %v, ID %q", err, f.IsClaimed(), f.ID)
	}
	if err := f.Remember(Left{VNIs: []uint32{7}}); err == nil {
		t.Error("written")
	}
	if e, err := f.HandOver(); len(e) > 0 || err != nil {
		t.Errorf("handed over %v, %v", e, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Settle(); err != nil || !f.IsClaimed() {
		t.Errorf("%v, claimed %v", err, f.IsClaimed())
	}
	text, err := os.ReadFile(Path(file))
	if err != nil || !strings.HasPrefix(string(text), f.ID+"\nvni 7\n") {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Claim(file); !errors.As(err, new(*RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
	f.Release()
	f, err = Claim(file)
	if err != nil || f.ID != string(text[:idLen]) {
		t.Errorf("the next daemon has ID %q, %v", f.ID, err)
	}
	f.Release()
	Unclaimed(file).Release() // of a daemon that ends without one
}

// TestUnclaimedTakesTheFile: a daemon that could not open its node file when it began keeps what the file knew, for the next one too, but for the ID.
func TestUnclaimedTakesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	own, earlier := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.66")
	text := strings.Repeat("0c", 16) + "\nvni 7\nnetwork 10.4.0.0/16\npublic 192.0.2.66\npublic 192.0.2.1\ndrained\nwrote 5\n"
	if err := os.WriteFile(Path(file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := Unclaimed(file)
	if former, err := f.Publish([]netip.Addr{own}); err != nil || len(former) > 0 { // it opens the file after it has looked
		t.Errorf("former %v, %v", former, err)
	}
	if got := f.Former([]netip.Addr{own}); !slices.Equal(got, []netip.Addr{earlier}) {
		t.Errorf("former %v", got)
	}
	if err := f.Remember(Left{VNIs: []uint32{8, 7}}); err != nil {
		t.Error(err)
	}
	f.Release()
	want := f.ID + "\nvni 8\nvni 7\nnetwork 10.4.0.0/16\npublic 192.0.2.1\npublic 192.0.2.66\nwrote 5\n"
	if b, err := os.ReadFile(Path(file)); err != nil || string(b) != want {
		t.Errorf("%q, %v; want %q", b, err, want)
	}
}

// TestRemovedNodeFile: a node file that somebody removes, with its directory too, is made again, unless another daemon has claimed it.
func TestRemovedNodeFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(dir, "subnet.env")
	f, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	before, err := os.ReadFile(Path(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil || f.IsClaimed() {
		t.Fatalf("%v, claimed %v", err, f.IsClaimed())
	}
	if err := f.Settle(); err != nil || !f.IsClaimed() {
		t.Errorf("%v, claimed %v", err, f.IsClaimed())
	}
	if after, err := os.ReadFile(Path(file)); err != nil || string(after) != string(before) {
		t.Errorf("%q, %v; want %q", after, err, before)
	}
	if _, err := Claim(file); !errors.As(err, new(*RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
	if err := os.Remove(Path(file)); err != nil {
		t.Fatal(err)
	}
	other, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Settle(); !errors.As(err, new(*RunningError)) || f.IsClaimed() || !other.IsClaimed() {
		t.Errorf("beside another daemon: %v", err)
	}
	other.Release()
	if err := f.Settle(); err != nil || !f.IsClaimed() {
		t.Errorf("when that has ended: %v", err)
	}
}

// TestDrained: a drain is noted until the next daemon claims the file.
func TestDrained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	f, err := Claim(file)
	if err != nil || WasDrained(file) {
		t.Fatal(err, WasDrained(file))
	}
	if err := f.Drained(); err != nil || !WasDrained(file) {
		t.Errorf("%v, drained %v", err, WasDrained(file))
	}
	f.Release()
	if f, err = Claim(file); err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	if err := f.Settle(); err != nil || WasDrained(file) {
		t.Errorf("the next daemon: %v, drained %v", err, WasDrained(file))
	}
}
