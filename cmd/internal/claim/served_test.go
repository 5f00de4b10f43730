package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDevicePerNamespace: hosts that share the directory of claims, as containers do, have the
// devices of their own network namespace.
func TestDevicePerNamespace(t *testing.T) {
	ns := []*netnstest.NS{netnstest.New(t), netnstest.New(t)}
	d := Devices{[]string{filepath.Join(t.TempDir(), "overlayd")}}
	var claims []*Device
	for i, n := range ns {
		n.Must(func() error {
			for vni := range uint32(i + 1) {
				c, err := d.Claim(vni + 7)
				if err != nil {
					return err
				}
				claims = append(claims, c)
			}
			return nil
		})
	}
	defer func() {
		for _, c := range claims {
			c.Release()
		}
	}()
	for i, want := range [][]string{{"flannel.7"}, {"flannel.7", "flannel.8"}} {
		ns[i].Must(func() error {
			served, err := d.Served()
			if slices.Sort(served); !slices.Equal(served, want) {
				t.Errorf("namespace %d serves %q, want %q", i, served, want)
			}
			if _, err := d.Claim(7); !errors.As(err, new(*ServedError)) {
				t.Errorf("namespace %d: second claim: %v", i, err)
			}
			return err
		})
	}
}

// TestServedIgnores: files that are nobody's claim any more, or no claim at all, are no device.
func TestServedIgnores(t *testing.T) {
	d := Devices{[]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "never")}}
	mine, err := d.Claim(5)
	if err != nil {
		t.Fatal(err)
	}
	netns, err := NetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Release()
	var keep []*os.File
	for name, lock := range map[string]bool{fmt.Sprint(netns, ".6"): false, fmt.Sprint(netns, ".x"): true, fmt.Sprint(netns, ".16777216"): true, fmt.Sprint(netns+1, ".7"): true} {
		path := filepath.Join(d.Dirs[0], name)
		if !lock { // of a daemon that was killed
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		keep = append(keep, f)
	}
	if served, err := d.Served(); err != nil || !slices.Equal(served, []string{"flannel.5"}) {
		t.Errorf("served %q, %v", served, err)
	}
	if again, err := d.Claim(6); err != nil {
		t.Errorf("the claim of a killed daemon: %v", err)
	} else {
		again.Release()
	}
	for _, f := range keep {
		f.Close()
	}
}

// TestRemovedFile: a file that is removed and made again is another one, and a lock of the removed one is not
// a claim.
func TestRemovedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	stale, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if done, err := settle(stale, path); done || err != nil {
		t.Errorf("a claim of the removed file: %v, %v; want to open it again", done, err)
	}
	if _, err := Open(path); !errors.As(err, new(*LockedError)) {
		t.Errorf("a second claim: %v", err)
	}
}
