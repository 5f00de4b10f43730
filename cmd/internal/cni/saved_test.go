package cni

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

func conf(name string) object {
	o := object{}
	o.set("name", name)
	o.set("type", "bridge")
	return o
}

// TestSaved: each interface of a container has its own file, and the first one has flannel's name.
func TestSaved(t *testing.T) {
	t.Parallel()
	s := store(filepath.Join(t.TempDir(), "cni", "flannel"))
	for _, ifName := range []string{"eth0", "net1", "eth0", "net1"} { // again: it is replaced
		if err := s.save("pod", attachment{IfName: ifName, Netns: "/n", Inode: 7}, conf(ifName)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(string(s))
	if err != nil || len(entries) != 2 || entries[0].Name() != "pod" || entries[1].Name() != "pod:net1" {
		t.Fatalf("files: %v, %v", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %s, %v", info.Mode(), err)
	}
	for _, ifName := range []string{"eth0", "net1"} {
		r, err := s.load("pod", ifName)
		if err != nil || r.conf.text("name") != ifName || r.made != (attachment{ifName, "/n", 7}) || r.container != "pod" {
			t.Errorf("%s: %+v, %v", ifName, r, err)
		}
	}
	for _, c := range [][2]string{{"pod", "net2"}, {"po", "eth0"}} {
		if r, err := s.load(c[0], c[1]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v: want nothing", c, r, err)
		}
	}
	list, err := s.all(func(err error) { t.Error(err) })
	if err != nil || len(list) != 2 || list[0].ifName() != "eth0" || list[1].ifName() != "net1" || list[1].container != "pod" {
		t.Errorf("all: %v, %v", list, err)
	}
}

// TestSavedByFlannel: a file of flannel's plugin is of whatever interface the runtime names.
func TestSavedByFlannel(t *testing.T) {
	t.Parallel()
	s := store(t.TempDir())
	if err := os.WriteFile(filepath.Join(string(s), "pod"), encode(conf("n")), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := s.load("pod", "net7")
	if err != nil || r.ifName() != "eth0" || !r.isOneOf([]types.GCAttachment{{ContainerID: "pod", IfName: "net7"}}) || r.isOneOf([]types.GCAttachment{{ContainerID: "pods", IfName: "eth0"}}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSavedDamaged: half a file is told from none, and keeps nothing else from being read.
func TestSavedDamaged(t *testing.T) {
	t.Parallel()
	s := store(t.TempDir())
	whole := string(encode(conf("n")))
	for name, text := range map[string]string{"empty": "", "half": whole[:len(whole)/2], "null": "null", "list": "[]", "type": `{"type":"a/b"}`, "own": `{"type":"bridge","overlayd":7}`, "whole": whole} {
		if err := os.WriteFile(filepath.Join(string(s), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "whole" {
			continue
		}
		if r, err := s.load(name, "eth0"); !errors.Is(err, errDamaged) || r == nil || filepath.Base(r.path) != name {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(string(s), "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.load("fifo", "eth0"); !errors.Is(err, errDamaged) || r == nil || filepath.Base(r.path) != "fifo" {
		t.Errorf("FIFO: %+v, %v", r, err)
	}
	said := 0
	if list, err := s.all(func(error) { said++ }); err != nil || len(list) != 1 || list[0].container != "whole" || said != 7 {
		t.Errorf("all: %v, %v, %d said", list, err, said)
	}
}

// TestSavedLeavesNothing: what a killed process has left goes with the next GC; what another one is writing now stays.
func TestSavedLeavesNothing(t *testing.T) {
	t.Parallel()
	s := store(t.TempDir())
	for name, age := range map[string]time.Duration{temporary + "old": 2 * time.Hour, temporary + "new": 0, ".foreign": 2 * time.Hour} {
		path := filepath.Join(string(s), name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, time.Time{}, time.Now().Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.all(func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(string(s))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestSavedNames: no name leads out of the directory.
func TestSavedNames(t *testing.T) {
	t.Parallel()
	s := store(t.TempDir())
	for _, c := range [][2]string{{"", "eth0"}, {"..", "eth0"}, {"../pod", "eth0"}, {"a/b", "eth0"}, {"/etc/passwd", "eth0"}, {".pod", "eth0"}, {"pod", "../eth0"}, {"pod", "a/b"}, {"a:b", "eth0"}} {
		_, lerr := s.load(c[0], c[1])
		for _, err := range []error{lerr, s.save(c[0], attachment{IfName: c[1]}, conf("n"))} {
			if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrInvalidEnvironmentVariables {
				t.Errorf("%q: %v", c, err)
			}
		}
	}
}

// TestSavedLongNames: names that are too long for a file are not added, because they could not be deleted. What flannel's plugin, or an
// older overlayd-cni, has added by such a name is found.
func TestSavedLongNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		length      int
		add, before bool
	}{{250, true, false}, {251, false, false}, {255, false, false}, {251, false, true}, {255, false, true}, {256, false, false}, {5000, false, false}} {
		s, id := store(t.TempDir()), strings.Repeat("c", c.length)
		if c.before {
			if err := os.WriteFile(filepath.Join(string(s), id), encode(conf("n")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := s.save(id, attachment{IfName: "eth0"}, conf("n"))
		if e := new(types.Error); (err == nil) != c.add || err != nil && (!errors.As(err, &e) || e.Code != types.ErrInvalidEnvironmentVariables) {
			t.Errorf("%d: save: %v", c.length, err)
		}
		if _, err := s.load(id, "eth0"); (err == nil) != (c.add || c.before) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d: load: %v", c.length, err)
		}
	}
}

// TestSaveFails: the error has the path.
func TestSaveFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := store(file).save("pod", attachment{IfName: "eth0"}, conf("n"))
	if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrIOFailure || !strings.Contains(e.Msg, file) {
		t.Errorf("a file for a directory: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pod"), 0o700); err != nil {
		t.Fatal(err)
	}
	err = store(dir).save("pod", attachment{IfName: "eth0"}, conf("n"))
	if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrIOFailure || e.Msg != "save "+filepath.Join(dir, "pod")+": file exists" {
		t.Errorf("a directory for a file: %v", err)
	}
}
