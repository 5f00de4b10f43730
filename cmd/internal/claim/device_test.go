package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDeviceClaim: one daemon has the device of a network namespace and VNI, until it releases it.
func TestDeviceClaim(t *testing.T) {
	d := Devices{[]string{filepath.Join(t.TempDir(), "run", "overlayd")}}
	first, err := d.Claim(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Claim(1); !errors.As(err, new(*ServedError)) {
		t.Errorf("second claim: %v", err)
	}
	another, err := d.Claim(2)
	if err != nil {
		t.Fatal(err)
	}
	another.Release()
	if served, err := d.Served(); err != nil || !slices.Equal(served, []string{"flannel.1"}) {
		t.Errorf("served: %v, %v", served, err)
	}
	first.Release()
	first, err = d.Claim(1)
	if err != nil {
		t.Fatal(err)
	}
	first.file.Close() // as when the process is killed
	if served, err := d.Served(); err != nil || served != nil {
		t.Errorf("served by a daemon that was killed: %v, %v", served, err)
	}
	if first, err = d.Claim(1); err != nil {
		t.Fatal(err)
	}
	if err := d.Forget(); err != nil {
		t.Fatal(err)
	}
	if served, err := d.Served(); err != nil || !slices.Equal(served, []string{"flannel.1"}) {
		t.Errorf("a claim that is held was forgotten: %v, %v", served, err)
	}
	first.file.Close()
	if err := d.Forget(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(d.Dirs[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestClaimDir: claims are made where nobody else can write, and nowhere else.
func TestClaimDir(t *testing.T) {
	dir := t.TempDir()
	make := func(name string, mode os.FileMode, uid int) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode), os.Chown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := filepath.Join(dir, "file")
	link := filepath.Join(dir, "link")
	own := make("own", 0o755, 0)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(own, link)); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{
		own: true, filepath.Join(dir, "a", "b"): true, make("group", 0o770, 0): false, make("other", 0o700, 65534): false,
		make("everybody", os.ModeSticky|0o777, 0): false, file: false, link: false,
	} {
		if err := usable(path); (err == nil) != ok {
			t.Errorf("%s: %v, want %v", filepath.Base(path), err, ok)
		}
	}
	second := Devices{[]string{file, fullDisk(t), own}}
	c, err := second.Claim(7)
	if err != nil || filepath.Dir(c.file.Name()) != own {
		t.Fatalf("beside a file and a full disk: %v", err)
	}
	defer c.Release()
	if _, err := second.Claim(7); !errors.As(err, new(*ServedError)) {
		t.Errorf("a second claim: %v", err)
	}
}

// fullDisk mounts a directory that has no room for one more file.
func fullDisk(t *testing.T) string { return netnstest.SmallDisk(t, "size=16k,nr_inodes=1,mode=700") }

// TestNoClaimDir: a daemon that can claim no device says so once for each, and serves it.
func TestNoClaimDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := Devices{Dirs: []string{filepath.Join(file, "a"), file}}
	if c, err := d.Claim(7); !errors.Is(err, ErrNoDir) || c != nil || !strings.Contains(fmt.Sprint(err), file) {
		t.Errorf("got %+v, %v", c, err)
	}
	if served, err := d.Served(); len(served) > 0 || err != nil {
		t.Errorf("served %q, %v", served, err)
	}
	(*Device)(nil).Release()
}
