package handover

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// manager is the socket of a service manager that notes what it is told.
func manager(t *testing.T) (told func() []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	var all []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b, oob := make([]byte, 4096), make([]byte, 256); ; {
			n, oobn, _, _, err := l.ReadMsgUnix(b, oob)
			if err != nil {
				return
			}
			fds, _ := parseRights(oob[:oobn])
			for _, fd := range fds {
				unix.Close(fd)
			}
			text, _, _ := strings.Cut(string(b[:n]), "\n")
			all = append(all, text+" "+strconv.Itoa(len(fds)))
		}
	}()
	return func() []string {
		l.Close()
		<-ended
		return all
	}
}

func nulls(t *testing.T, names ...string) (exports []carrier.Export) {
	t.Helper()
	for _, name := range names {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		exports = append(exports, carrier.Export{Name: name, Version: carrier.ExportVersion, File: f})
	}
	return exports
}

// TestKeeper: each file is told once, what there is no room for not at all, and after the end nothing.
func TestKeeper(t *testing.T) {
	told := manager(t)
	t.Setenv("FDSTORE", "3")
	k, left := OpenKeeper(slog.New(slog.DiscardHandler))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := k.Put(nulls(t, "tun a", "tun a", "udp b")); err != nil {
		t.Error(err)
	}
	if err := k.Put(nulls(t, "tun a", "tun a")); err != nil {
		t.Error(err)
	}
	if err := k.Put(nulls(t, "listener c")); err == nil || !strings.Contains(err.Error(), "FileDescriptorStoreMax=4") {
		t.Errorf("without room: %v", err)
	}
	if err := k.Remove("udp b", "never there"); err != nil {
		t.Error(err)
	}
	if err := k.End(); err != nil {
		t.Error(err)
	}
	if err := k.Put(nulls(t, "tun a")); err != nil {
		t.Error(err)
	}
	want := "FDSTORE=1 1,FDSTORE=1 1,FDSTORE=1 1,FDSTOREREMOVE=1 0,BARRIER=1 1,FDSTOREREMOVE=1 0,FDSTOREREMOVE=1 0,BARRIER=1 1"
	if got := strings.Join(told(), ","); got != want {
		t.Errorf("told\n%s, want\n%s", got, want)
	}
}

// TestNoKeeper: without a service manager nothing is kept, and one that is not there is an error.
func TestNoKeeper(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	k, _ := OpenKeeper(slog.New(slog.DiscardHandler))
	if err := k.Put(nulls(t, "tun a")); k != nil || err != nil {
		t.Errorf("got %v, %v", k, err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	k, _ = OpenKeeper(slog.New(slog.DiscardHandler))
	if err := k.Put(nulls(t, "tun a")); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("got %v", err)
	}
}

// TestReceive: names that this version did not give are no files of it, and of two of one name one is.
func TestReceive(t *testing.T) {
	var log bytes.Buffer
	k := &Keeper{log: slog.New(slog.NewTextHandler(&log, nil)), kept: map[string]string{}}
	var files []*os.File
	for _, name := range []string{"", "stored", "file=tun+a", "file=tun+a&index=-1&flags=0&version=1", "file=&index=0&flags=0&version=1", "file=%zz",
		"file=tun+a&index=1&flags=2&version=1", "file=tun+a&index=0&flags=x&version=1", "file=tun+a&index=0&flags=0&version=",
		"file=tun+a&index=99999&flags=0&version=1", "file=tun+a&index=0&flags=ff&version=7", "file=tun+a&index=0&flags=0&version=1"} {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	got := k.receive(files)
	if len(got) != 2 || got[0].Flags != 0xff || got[0].Version != 7 || got[1].Flags != 2 {
		t.Errorf("got %+v", got)
	}
	carrier.CloseExports(got)
	if n := strings.Count(log.String(), "level=WARN"); n != 10 {
		t.Errorf("%d warnings:\n%s", n, &log)
	}
	for _, f := range files {
		if _, ok := k.kept[f.Name()]; !ok {
			t.Errorf("%q stays with the service manager for good", f.Name())
		}
		if f.Close() == nil {
			t.Errorf("%q was still open", f.Name())
		}
	}
}

// TestKeeperHangs: a service manager that takes no messages is waited for once, and not once for each file.
func TestKeeperHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err == nil { // until it is full
		err = unix.Sendto(fd, []byte("STATUS=x"), 0, &unix.SockaddrUnix{Name: path})
	}
	k := &Keeper{log: slog.New(slog.DiscardHandler), socket: path, room: roomUnknown, within: 200 * time.Millisecond, kept: map[string]string{}}
	for i := range 10 {
		k.kept[strconv.Itoa(i)] = "tun a"
	}
	began := time.Now()
	if err := k.Remove("tun a"); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 5*k.within || len(k.kept) != 10 {
		t.Errorf("after %s %d files are known, want all: the service manager was not told", took, len(k.kept))
	}
	began = time.Now()
	if err := k.Put(nulls(t, "tun a", "tun a", "tun a")); err == nil || len(k.kept) != 10 || time.Since(began) > 3*k.within/2 {
		t.Errorf("got %v after %s, %d files are known", err, time.Since(began), len(k.kept))
	}
	if err := k.End(); err == nil || k.over {
		t.Errorf("got %v, and keeps nothing any more: %v", err, k.over)
	}
}
