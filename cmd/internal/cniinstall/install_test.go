package cniinstall

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/cni"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

const subnetEnv = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

// world is a host with directories to install into.
type world struct {
	*testing.T
	Config
	log *netnstest.Log
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{T: t, log: new(netnstest.Log)}
	w.Config = Config{Plugin: filepath.Join(dir, "overlayd-cni"), BinDir: filepath.Join(dir, "bin"), Names: []string{"overlayd-cni", "flannel"},
		ConfOut: filepath.Join(dir, "net.d", "10-overlayd.conflist"), SubnetFile: filepath.Join(dir, "subnet.env"), Log: slog.New(slog.NewTextHandler(w.log, nil))}
	w.file(w.Plugin, "program 1")
	var err error
	if w.Conf, err = DefaultConf("overlayd-cni", "1.0.0", w.SubnetFile); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) file(path, text string) {
	w.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

// is wants a file with this content and mode, or none if that is 0.
func (w *world) is(path, text string, mode fs.FileMode) {
	w.Helper()
	got, err := os.ReadFile(path)
	if mode == 0 {
		if !errors.Is(err, fs.ErrNotExist) {
			w.Errorf("%s is there: %q, %v", path, got, err)
		}
		return
	}
	info, serr := os.Stat(path)
	if err != nil || serr != nil || string(got) != text || info.Mode() != mode {
		w.Errorf("%s: %q, %v, %v", path, got, err, serr)
	}
}

// look looks once.
func (w *world) look(i *Installer) (done bool) {
	w.Helper()
	done, err := i.look()
	if err != nil {
		w.Fatal(err)
	}
	return done
}

// TestInstall: the plugin is there at once, the config once there is a whole subnet file and its daemon is ready; then both
// stay, whatever becomes of the daemon and of them.
func TestInstall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := New(w.Config)
	own, flannels := filepath.Join(w.BinDir, "overlayd-cni"), filepath.Join(w.BinDir, "flannel")
	var ready atomic.Bool
	l, err := net.Listen("unix", w.SubnetFile+".sock")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			rw.WriteHeader(503)
			rw.Write([]byte("[-]lease failed: none is free\n"))
		}
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })

	for _, step := range []func(){func() {}, func() { w.file(w.SubnetFile, subnetEnv) }, func() { ready.Store(true); w.file(w.SubnetFile, subnetEnv[:60]) }} {
		step()
		if w.look(i) {
			t.Error("installed too early")
		}
		w.is(own, "program 1", 0o755)
		w.is(flannels, "program 1", 0o755)
		w.is(w.ConfOut, "", 0)
	}
	w.file(w.SubnetFile, subnetEnv)
	if !w.look(i) {
		t.Fatal("not installed")
	}
	w.is(w.ConfOut, string(w.Conf.text), 0o644)

	ready.Store(false)
	for _, path := range []string{own, w.ConfOut} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	w.file(flannels, "somebody else's")
	if !w.look(i) {
		t.Error("not kept")
	}
	w.file(w.Plugin, "program 2, newer")
	w.look(i)
	for _, path := range []string{own, flannels} {
		w.is(path, "program 2, newer", 0o755)
	}
	w.is(w.ConfOut, string(w.Conf.text), 0o644)
	for text, n := range map[string]int{"waits for the daemon": 2, "none is free": 1, "is there again": 3, "plugins=\"bridge host-local portmap\"": 1} {
		if got := w.log.Count(text); got != n {
			t.Errorf("the log has %q %d times, want %d:\n%s", text, got, n, w.log)
		}
	}
	for _, dir := range []string{w.BinDir, filepath.Dir(w.ConfOut)} {
		if all, _ := filepath.Glob(filepath.Join(dir, ".*")); len(all) > 0 {
			t.Errorf("left: %v", all)
		}
	}
}

// TestUpgradeOfOne: a name under which a newer program cannot be installed at once keeps no other name at the old one, and gets
// it later.
func TestUpgradeOfOne(t *testing.T) {
	t.Parallel()
	for _, stuck := range []int{0, 1} {
		w := newWorld(t)
		w.ConfOut = ""
		i := New(w.Config)
		w.look(i)
		var path [2]string
		for n, name := range w.Names {
			path[n] = filepath.Join(w.BinDir, name)
		}
		w.file(w.Plugin, "program 2, newer")
		if err := errors.Join(os.Remove(path[stuck]), os.MkdirAll(filepath.Join(path[stuck], "x"), 0o755)); err != nil {
			t.Fatal(err)
		}
		if _, err := i.look(); err == nil || !strings.Contains(err.Error(), path[stuck]) {
			t.Errorf("a directory for %s: %v", path[stuck], err)
		}
		w.is(path[1-stuck], "program 2, newer", 0o755)
		if err := os.RemoveAll(path[stuck]); err != nil {
			t.Fatal(err)
		}
		w.look(i)
		for _, p := range path {
			w.is(p, "program 2, newer", 0o755)
		}
	}
}

// TestOnce: without a config nothing is waited for; with one, an end of the time names what lacks.
func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := New(w.Config).Once(ctx); err == nil || !strings.Contains(err.Error(), w.ConfOut) || !strings.Contains(err.Error(), "subnet.env: no such file") {
		t.Errorf("no daemon: %v", err)
	}
	w.ConfOut = ""
	if err := New(w.Config).Once(t.Context()); err != nil {
		t.Error(err)
	}
	w.BinDir = w.Plugin
	if err := New(w.Config).Once(t.Context()); err == nil || !strings.Contains(err.Error(), w.BinDir) {
		t.Errorf("a file for a directory: %v", err)
	}
}

// TestKeep: what is removed comes back, and a signal ends it.
func TestKeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.file(w.SubnetFile, subnetEnv)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { New(w.Config).Keep(ctx); close(ended) }()
	for range 2 {
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			if os.Remove(w.ConfOut) == nil {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("no config:\n%s", w.log)
			}
		}
	}
	cancel()
	<-ended
}

// TestConf: the config that is built in is flannel's, with another plugin.
func TestConf(t *testing.T) {
	t.Parallel()
	c, err := DefaultConf("flannel", "1.1.0", "/run/flannel/subnet.env")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(c.text, &got); err != nil || got.Name != "cbr0" || got.CNIVersion != "1.1.0" || len(got.Plugins) != 2 || got.Plugins[0]["type"] != "flannel" || got.Plugins[0]["subnetFile"] != nil {
		t.Errorf("%s: %v", c.text, err)
	}
	if _, err := DefaultConf("flannel", "1.2.3", "/x"); err == nil || !strings.Contains(err.Error(), "1.2.3") {
		t.Errorf("CNI 1.2.3: %v", err)
	}
	path := filepath.Join(t.TempDir(), "conf")
	if err := unix.Mkfifo(path+".fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConf(path+".fifo", nil); err == nil || !strings.Contains(err.Error(), path+".fifo: want a regular file, not a FIFO") {
		t.Errorf("FIFO: %v", err)
	}
	for text, want := range map[string]string{
		`{`: "parsing", `null`: "no name", `{"name":"x"}`: "plugins", `{"name":"x","plugins":[]}`: "plugins", `{"name":"x","plugins":[{}]}`: "type",
		`{"name":"x","plugins":[{"type":"flannel","subnetFile":"a/b.env"}]}`:                                                              `plugin flannel: subnetFile: "a/b.env": want an absolute path`,
		`{"name":"x","plugins":[{"type":"portmap"},{"type":"flannel","dataDir":"data"}]}`:                                                 `plugin flannel: dataDir: "data": want an absolute path`,
		`{"name":"x","plugins":[{"type":"flannel","subnetFile":7}]}`:                                                                      "plugin flannel: read the network config",
		`{"name":"x","plugins":[{"type":"other","subnetFile":"a"},{"type":"flannel","subnetFile":"/a/b.env","delegate":{"type":"ptp"}}]}`: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadConf(path, []string{"flannel"})
		if want == "" {
			if file := c.subnetFile([]string{"flannel"}, "/else"); err != nil || file != "/a/b.env" || c.subnetFile([]string{"x"}, "/else") != "/else" {
				t.Errorf("%s: %v, %s", text, err, file)
			}
			if all := strings.Join(c.lacking("/nowhere", []string{"flannel"}), " "); all != "other flannel ptp host-local" {
				t.Errorf("%s: lacks %s", text, all)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestDocumented: docs/cni.md has the config that is written without flags.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cni.md")
	if err != nil {
		t.Fatal(err)
	}
	c, err := DefaultConf("overlayd-cni", "1.0.0", cni.DefaultSubnetFile)
	if err != nil || !strings.Contains(string(page), "```\n"+string(c.text)+"```\n") {
		t.Errorf("%v, not in docs/cni.md:\n%s", err, c.text)
	}
}

// TestWriteFails: one fault is one error, however often it is tried: the temporary names are not in it.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "conf")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := write(path, 0o644, strings.NewReader("")); err == nil || err.Error() != "file exists" {
		t.Errorf("a directory for a file: %v", err)
	}
	if _, err := write("/proc/conf", 0o644, strings.NewReader("")); err == nil || err.Error() != "no such file or directory" {
		t.Errorf("a directory that takes no files: %v", err)
	}
}
