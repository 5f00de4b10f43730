// Package handover carries open files from one daemon to the next. There are two ways:
//
//   - A running daemon gives them to the daemon that takes its place (handover.go, serve.go), with one question and one answer on
//     a Unix socket of mode 0600 beside the subnet file. Each side talks only to root and to its own user.
//   - The service manager keeps the files of a daemon that has ended, in whatever way, for the daemon that it starts next (keeper.go).
//
// In both ways the files form an [Estate], from which each user takes what it can go on with. A user of a file first
// checks that the file is what its name says.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// Path returns the path of the socket of the daemon that has a subnet file.
func Path(subnetFile string) string { return subnetFile + ".handover" }

// version is the version of question and answer.
const version = 1

// patience bounds how long one side waits for the other.
const patience = 5 * time.Second

// maxMessage bounds what is read of a message; no message is that large. maxFiles is how many files the kernel
// lets one carry (SCM_MAX_FD).
const (
	maxMessage = 64 << 10
	maxFiles   = 253
)

// Question is what the new daemon asks.
type Question struct {
	Version int `json:"version"`
	// All says that the new daemon knows more than queues and sockets. The first daemons that could ask did not.
	All      bool     `json:"all,omitempty"`
	Networks []string `json:"networks,omitempty"` // that the new daemon will serve; none: all that there are
}

// Legacy is what one daemon leaves to the next.
type Legacy struct {
	Exports []carrier.Export `json:"exports,omitempty"` // with a file each
	Nonce   string           `json:"nonce,omitempty"`   // by which the store knows the daemon
	Start   time.Time        `json:"start,omitzero"`    // of the first daemon with that nonce
	Leases  []int64          `json:"leases,omitempty"`  // handles of its entries in the store

	wait func(ctx context.Context) // see Wait
}

// answer is what the running one says.
type answer struct {
	Error string `json:"error,omitempty"` // why it goes on
	Legacy
}

// Wait returns when the daemon or ctx has ended.
func (l *Legacy) Wait(ctx context.Context) { l.wait(ctx) }

// ErrPeer says that the other end of the socket is another user's.
var ErrPeer = errors.New("the other process is neither root's nor this user's")

// checkPeer refuses other users.
func checkPeer(c *net.UnixConn) error {
	cred, err := claim.Peer(c)
	if err != nil {
		return fmt.Errorf("ask who is there: %w", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: uid %d, pid %d", ErrPeer, cred.Uid, cred.Pid)
	}
	return nil
}

// Ask asks the daemon at path to make room, and returns what it leaves, which is the caller's: Wait has to
// be called. After an error the daemon goes on, unless it could not tell.
func Ask(path string, q Question) (*Legacy, error) {
	c, err := net.DialTimeout("unixpacket", path, patience)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	l, err := ask(conn, q)
	if err != nil {
		c.Close()
		return nil, err
	}
	l.wait = func(ctx context.Context) {
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			return
		}
		defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
		_, _ = conn.Read(make([]byte, 1)) // the end, or the deadline: the caller looks
	}
	return l, nil
}

func ask(conn *net.UnixConn, q Question) (*Legacy, error) {
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	q.Version = version
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	return readAnswer(conn)
}

func readAnswer(conn *net.UnixConn) (*Legacy, error) {
	b, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	fds, err := parseRights(oob[:oobn])
	if err != nil {
		return nil, err
	}
	var a answer
	err = json.Unmarshal(b[:n], &a)
	switch {
	case err != nil:
		err = fmt.Errorf("read answer: %w", err)
	case a.Error != "":
		err = errors.New(a.Error)
	case len(a.Exports) != len(fds):
		err = fmt.Errorf("%d files came with %d names", len(fds), len(a.Exports))
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	for i, fd := range fds {
		_ = unix.SetNonblock(fd, true) // or Go's poller would not wait for it: what cannot be non-blocking is unfit
		a.Exports[i].File = os.NewFile(uintptr(fd), a.Exports[i].Name)
	}
	return &a.Legacy, nil
}

// parseRights returns the files of the control messages.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	for i := range messages {
		more, err := syscall.ParseUnixRights(&messages[i])
		if err == nil {
			fds = append(fds, more...)
		}
	}
	return fds, nil
}

// send writes an answer and its files.
func send(conn *net.UnixConn, a answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	fds := make([]int, len(a.Exports))
	for i, e := range a.Exports {
		fds[i] = int(e.File.Fd())
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(b, oob, nil)
	return err
}
