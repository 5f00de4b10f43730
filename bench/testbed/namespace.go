package testbed

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is a network namespace, with a netlink connection into it.
type Namespace struct {
	Name   string
	handle netns.NsHandle
	nl     *netlink.Handle
}

// NewNamespace makes a namespace with a name in /run/netns and its loopback up. It
// exists until the name is removed (Prefix.Remove) and nothing is left in it.
func NewNamespace(name string) (*Namespace, error) {
	handle := netns.None()
	err := onOwnThread(func() (err error) {
		handle, err = netns.NewNamed(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w (in a container this needs --privileged)", name, err)
	}
	n, err := open(name, handle)
	if err != nil {
		return nil, err
	}
	if err := n.SetUp("lo"); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// OpenNamespace opens the network namespace of a process. name is for errors.
func OpenNamespace(name string, pid int) (*Namespace, error) {
	handle, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("open network namespace of %s: %w", name, err)
	}
	return open(name, handle)
}

// open takes over the handle.
func open(name string, handle netns.NsHandle) (*Namespace, error) {
	nl, err := netlink.NewHandleAt(handle)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), handle.Close())
	}
	return &Namespace{Name: name, handle: handle, nl: nl}, nil
}

// Close closes the handles. A named namespace stays.
func (n *Namespace) Close() error {
	n.nl.Close()
	return n.handle.Close()
}

// Do runs f in the namespace, on a thread of its own. Sockets and processes that f
// makes stay in the namespace; goroutines that f starts do not.
func (n *Namespace) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it, so that f may leave the
// thread in any namespace.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: this ends the thread
		done <- f()
	}()
	return <-done
}
