package claim

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestDeviceClaim: of one network namespace and VNI one daemon has the device, until it releases it.
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
		got, err := Devices{[]string{path}}.usable()
		if (err == nil) != ok || ok && got != path || !ok && !errors.Is(err, ErrNoDir) {
			t.Errorf("%s: %q, %v, want %v", filepath.Base(path), got, err, ok)
		}
	}
	if got, err := (Devices{[]string{file, own}}).usable(); got != own || err != nil {
		t.Errorf("second directory: %q, %v", got, err)
	}
}
