package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// store is the directory of the saved configs, flannel's: the file <container> holds the config with which the delegate has
// made the container's interface. Of a second interface it is <container>:<interface>; flannel's plugin overwrites the
// first one then. A colon is in neither name.
type store string

// saved is one of these files.
type saved struct {
	path      string
	container string
	conf      object
	made      attachment
}

// attachment is what a saved config tells besides flannel's: its key ownKey, which delegates do not know. All of it is zero
// in a file of flannel's plugin.
type attachment struct {
	IfName string `json:"ifname"`
	Netns  string `json:"netns"`
	Inode  uint64 `json:"inode"` // of Netns: its path may be another container's later
}

const ownKey = "overlayd"

// errDamaged marks a file that holds no config, such as half of one: flannel's plugin does not write at once.
var errDamaged = errors.New("it holds no config of a plugin")

const temporary = ".overlayd-" // begins the names of files that are being written; a container's begins otherwise

// save saves the config of an attachment before the delegate makes it. No reader ever finds half of it. It is not synced:
// after a power cut its container is gone too, and del does without it.
func (s store) save(container string, made attachment, conf object) error {
	path, err := s.place(container, made.IfName)
	if err != nil {
		return err
	}
	conf.set(ownKey, made)
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return types.NewError(types.ErrIOFailure, err.Error(), "")
	}
	f, err := os.CreateTemp(string(s), temporary+"*") // of mode 0600
	if err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("save %s: %v", path, hostfile.Cause(err)), "")
	}
	_, err = f.Write(encode(conf))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("save %s: %v", path, hostfile.Cause(err)), "")
	}
	return nil
}

// place returns where to save an attachment.
func (s store) place(container, ifName string) (string, error) {
	first, second, err := s.names(container, ifName)
	if err != nil {
		return "", err
	}
	if len(filepath.Base(second)) > maxName { // also for a first interface: each may get a second one
		return "", badNames(container, ifName)
	}
	if r, err := read(first); err == nil && r.made.IfName != "" && r.made.IfName != ifName {
		return second, nil
	}
	return first, nil
}

// names returns the two files that an attachment may have.
func (s store) names(container, ifName string) (first, second string, err error) {
	name := container + ":" + ifName
	if name != filepath.Base(name) || container == "" || strings.HasPrefix(container, ".") || strings.Contains(container, ":") {
		return "", "", badNames(container, ifName)
	}
	return filepath.Join(string(s), container), filepath.Join(string(s), name), nil
}

// maxName bounds the name of a file, in bytes: NAME_MAX of linux/limits.h.
const maxName = 255

func badNames(container, ifName string) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_CONTAINERID %.100q, CNI_IFNAME %.100q: want names that can be a file's, of %d bytes together at most", container, ifName, maxName-1), "")
}

// load returns what is saved of an attachment; fs.ErrNotExist: nothing. If the file is damaged it has its path still.
func (s store) load(container, ifName string) (*saved, error) {
	first, second, err := s.names(container, ifName)
	if err != nil {
		return nil, err
	}
	if r, err := read(second); !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	r, err := read(first)
	if err == nil && r.made.IfName != "" && r.made.IfName != ifName {
		return nil, fs.ErrNotExist
	}
	return r, err
}

// all returns what is saved of all attachments, of every network. Damaged files are left out, and say is told of them. It removes
// what a process left that was killed while it wrote.
func (s store) all(say func(error)) (list []*saved, err error) {
	entries, err := os.ReadDir(string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, types.NewError(types.ErrIOFailure, err.Error(), "")
	}
	for _, e := range entries {
		path := filepath.Join(string(s), e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), temporary) && time.Since(info.ModTime()) > time.Hour {
				os.Remove(path)
			}
			continue
		}
		switch r, err := read(path); {
		case err == nil:
			list = append(list, r)
		case !errors.Is(err, fs.ErrNotExist): // it may have been deleted meanwhile
			say(err)
		}
	}
	return list, nil
}

// read reads one file.
func read(path string) (*saved, error) {
	text, err := hostfile.Read(path)
	if errors.Is(err, unix.ENAMETOOLONG) {
		err = fs.ErrNotExist
	}
	container, ifName, _ := strings.Cut(filepath.Base(path), ":")
	r := &saved{path: path, container: container}
	r.made.IfName = ifName
	if errors.Is(err, hostfile.ErrNotRegular) {
		return r, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &r.conf); err != nil {
		return r, fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	var ipam object
	if _, err := pluginOf("type", r.conf, ""); err != nil || r.conf.text("type") == "" || decode(r.conf["ipam"], &ipam) != nil || decode(r.conf[ownKey], &r.made) != nil {
		return r, fmt.Errorf("%s: %w", path, errDamaged)
	}
	return r, nil
}

// decode reads JSON that may be missing.
func decode(raw json.RawMessage, to any) error {
	if raw == nil {
		return nil
	}
	return json.Unmarshal(raw, to)
}

// inodeOf returns the inode of the network namespace at path, or 0 if nothing can be read there.
func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
