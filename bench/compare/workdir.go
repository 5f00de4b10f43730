package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
)

const workDirPrefix = "overlayd-compare-"

// workDir holds all hosts' files: configurations, logs, etcd's data. It is locked
// as long as its run lives, so that a later run can remove the files of a killed one.
type workDir struct {
	path string
	lock *os.File
}

func newWorkDir() (w *workDir, err error) {
	if err := removeStale(); err != nil {
		return nil, fmt.Errorf("remove what an earlier run left: %w", err)
	}
	w = new(workDir)
	if w.path, err = os.MkdirTemp("", workDirPrefix); err != nil {
		return nil, fmt.Errorf("make directory for the hosts: %w", err)
	}
	if w.lock, err = lockDir(w.path); err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.path))
	}
	return w, nil
}

func (w *workDir) remove() error {
	return errors.Join(os.RemoveAll(w.path), w.lock.Close())
}

// removeStale removes the directories of runs that have ended.
func removeStale() error {
	dirs, err := testbed.OwnDirs(workDirPrefix)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		lock, err := lockDir(dir)
		if err != nil {
			continue // its run lives
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// lockDir fails if somebody else holds the lock; the kernel gives it back with the process.
func lockDir(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
