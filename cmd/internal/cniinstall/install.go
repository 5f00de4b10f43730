package cniinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/cni"
	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Config says what to install, and where.
type Config struct {
	Plugin     string   // the program
	BinDir     string   // where to put it
	Names      []string // how to call it there
	Conf       Conf
	ConfOut    string // where to put Conf; empty: nowhere
	SubnetFile string // that Conf waits for, if it names none itself
	Log        *slog.Logger
}

const (
	period = time.Second // at which files and daemon are looked at
	notice = 10 * time.Minute
	stale  = 10 * time.Minute // a file that is being written is not as old
	truce  = time.Minute      // between two repairs of a file that somebody keeps changing, such as the pod of another version
)

// Installer installs what a Config says.
type Installer struct {
	cfg    Config
	seen   map[string]fs.FileInfo // of each file when it was right
	source fs.FileInfo            // of Config.Plugin then
	fights pace.Fights            // over a file
	until  map[string]time.Time   // when a file that is fought over is put back next
	swept  time.Time
	said   string // the last thing that was waited for
	saidAt time.Time
}

// New returns an Installer.
func New(c Config) *Installer {
	return &Installer{cfg: c, seen: map[string]fs.FileInfo{}, until: map[string]time.Time{}, fights: pace.Fights{Within: 2 * truce}}
}

// Once installs plugin and config, and waits for what the config needs until ctx ends.
func (i *Installer) Once(ctx context.Context) error {
	for {
		done, err := i.look()
		if done || err != nil {
			return err
		}
		if !pace.Sleep(ctx, period, nil) {
			return fmt.Errorf("%s is not installed: %s", i.cfg.ConfOut, i.said)
		}
	}
}

// Keep installs as Once does, and then puts back what somebody removes or changes, until ctx ends. What fails is logged and
// tried again.
func (i *Installer) Keep(ctx context.Context) {
	for {
		if _, err := i.look(); err != nil {
			i.say("CNI files cannot be installed", strings.ReplaceAll(err.Error(), "\n", "; "), "make the directories writable for overlayd cni install")
		}
		if !pace.Sleep(ctx, period, nil) {
			return
		}
	}
}

// look installs missing files, as far as they may be installed now. done reports whether all are installed.
func (i *Installer) look() (done bool, err error) {
	i.sweep()
	if err := i.plugins(); err != nil {
		return false, err
	}
	if i.cfg.ConfOut == "" {
		return true, nil
	}
	if _, installed := i.seen[i.cfg.ConfOut]; !installed { // then it stays
		if lacks := i.lacks(); lacks != "" {
			i.say("the CNI config waits for the daemon", lacks, "overlayd status says more")
			return false, nil
		}
	}
	return true, i.put(i.cfg.ConfOut, 0o644, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(i.cfg.Conf.text)), nil })
}

// sweep removes what an installer left that was killed while it wrote.
func (i *Installer) sweep() {
	if time.Since(i.swept) < stale {
		return
	}
	i.swept = time.Now()
	dirs := []string{i.cfg.BinDir}
	if i.cfg.ConfOut != "" {
		dirs = append(dirs, filepath.Dir(i.cfg.ConfOut))
	}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // whoever cannot read it cannot install either, and says so
		for _, e := range entries {
			if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), temporary) && time.Since(info.ModTime()) > stale {
				os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// plugins installs the program under each name, also if that fails for another one. A newer program takes the place of the installed ones.
func (i *Installer) plugins() error {
	source, err := os.Stat(i.cfg.Plugin)
	if err != nil {
		return err
	}
	newer := !same(source, i.source)
	i.source = source
	var errs []error
	for _, name := range i.cfg.Names {
		path := filepath.Join(i.cfg.BinDir, name)
		if newer {
			delete(i.seen, path)
		}
		errs = append(errs, i.put(path, 0o755, openFile(i.cfg.Plugin)))
	}
	return errors.Join(errs...)
}

// openFile returns what opens a file.
func openFile(path string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return hostfile.Open(path) }
}

// lacks says what has to be there before the config is, empty if nothing lacks.
func (i *Installer) lacks() string {
	file := i.cfg.Conf.subnetFile(i.cfg.Names, i.cfg.SubnetFile)
	if d := cni.Ask(file); d.Answers && !d.Ready {
		return "overlayd is not ready: " + d.Why
	}
	if err := cni.CheckSubnetFile(file); err != nil {
		return err.Error()
	}
	return ""
}

// put installs one file, if it is not as it was installed.
func (i *Installer) put(path string, mode fs.FileMode, open func() (io.ReadCloser, error)) error {
	before, known := i.seen[path]
	if known {
		now, err := os.Lstat(path)
		if err == nil && same(now, before) || time.Now().Before(i.until[path]) {
			return nil
		}
		if err == nil && now.Mode() == mode && holds(path, open) {
			i.seen[path] = now // another overlayd cni install has put it there
			return nil
		}
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := write(path, mode, from)
	if err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	i.seen[path] = info
	if known {
		i.repaired(path)
		return nil
	}
	i.cfg.Log.Info("CNI file installed", "file", path)
	if path == i.cfg.ConfOut {
		if all := i.cfg.Conf.lacking(i.cfg.BinDir, i.cfg.Names); len(all) > 0 {
			i.cfg.Log.Warn("the CNI config names plugins that are not in the directory", "dir", i.cfg.BinDir, "plugins", strings.Join(all, " "),
				"fix", "install containernetworking-plugins there, unless the runtime has another directory with them")
		}
	}
	return nil
}

// repaired notes the repair of a file, and logs it. The next one waits if somebody keeps undoing that.
func (i *Installer) repaired(path string) {
	now := time.Now()
	if !i.fights.Repaired(now, path) {
		delete(i.until, path)
		i.cfg.Log.Warn("a CNI file was removed or changed, and is there again", "file", path, "fix", "find who changes it, or stop overlayd cni install")
		return
	}
	if _, fought := i.until[path]; !fought {
		i.cfg.Log.Warn("somebody keeps changing a CNI file: putting it back once a minute, without a line each time", "file", path,
			"fix", "end the other installer; if that is the pod of another version, finish the rollout: kubectl rollout status")
	}
	i.until[path] = now.Add(truce)
}

// same reports whether a file is the one that it was.
func same(a, b fs.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}

// holds reports whether the file at path has what open reads.
func holds(path string, open func() (io.ReadCloser, error)) bool {
	want, err := open()
	if err != nil {
		return false
	}
	defer want.Close()
	got, err := hostfile.Open(path)
	if err != nil {
		return false
	}
	defer got.Close()
	var a, b [32 << 10]byte
	for {
		n, err := io.ReadFull(want, a[:])
		m, _ := io.ReadFull(got, b[:])
		if !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

const temporary = ".overlayd-" // begins the names of files that are being written

// write puts a file in its place at once, and makes it outlive a power cut.
func write(path string, mode fs.FileMode, from io.Reader) (fs.FileInfo, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, temporary+"*")
	if err != nil {
		return nil, hostfile.Cause(err) // without the random name, as below: each try would be another error
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, hostfile.Cause(err)
	}
	return os.Lstat(path)
}

// say logs what is waited for, once for each reason, and again after a while.
func (i *Installer) say(msg, reason, fix string) {
	if reason == i.said && time.Since(i.saidAt) < notice {
		return
	}
	i.said, i.saidAt = reason, time.Now()
	i.cfg.Log.Warn(msg, "err", reason, "fix", fix)
}
