package rtnl

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// SysctlError means that a sysctl cannot be read or set.
type SysctlError struct {
	Name  string // as SysctlName returns it
	Value string // what it should be
	Err   error
}

// Error implements error.
func (e *SysctlError) Error() string {
	return fmt.Sprintf("set sysctl %s=%s: %v", e.Name, e.Value, e.Err)
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *SysctlError) Unwrap() error { return e.Err }

// SetSysctl makes a sysctl of the calling thread's network namespace have the
// value. The path is below /proc/sys, such as net/ipv4/ip_forward. It writes only
// if the value differs: in a container /proc/sys is often read-only, but already right.
// An error is a *[SysctlError].
func SetSysctl(path, value string) error {
	file := "/proc/sys/" + path
	have, err := os.ReadFile(file)
	if err == nil && string(bytes.TrimSpace(have)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(file, []byte(value), 0)
	}
	if err != nil {
		return &SysctlError{Name: SysctlName(path), Value: value, Err: err}
	}
	return nil
}

// SysctlName returns the name that sysctl(8) has for a path below /proc/sys: net.ipv4.conf.eth0/1.forwarding
// for that of the interface eth0.1.
func SysctlName(path string) string { return strings.NewReplacer("/", ".", ".", "/").Replace(path) }
