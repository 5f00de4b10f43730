package main

import (
	"os"
	"syscall"

	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// hidePassword runs this program again, as the same process, without the password of etcd among the arguments, which every
// user of the host can read for as long as the process lives. It goes into the environment, where `overlayd lease` finds it
// as it finds what was there before, and child processes, too. To overwrite the arguments in memory would hide it from them.
// If that is not possible the program goes on as it is.
func hidePassword() {
	rest, password := flags.WithoutPassword(os.Args[1:])
	if password == "" {
		return
	}
	_ = syscall.Exec(ownPath(), append([]string{os.Args[0]}, rest...), append(os.Environ(), flags.PasswordEnv+"="+password))
}

// ownPath returns a path of the program that runs: its own, by which it is known in /proc, unless another file is there by now.
func ownPath() string {
	const self = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return self
	}
	there, err := os.Stat(path)
	running, rerr := os.Stat(self)
	if err != nil || rerr != nil || !os.SameFile(there, running) {
		return self
	}
	return path
}
