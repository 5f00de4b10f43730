// Package tcpport opens the TCP ports of a daemon, and says who has a port that is taken.
package tcpport

import (
	"errors"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen opens a port at an address of this host, which may be a name, or empty for every address. If another process
// has the port, the error is a *TakenError.
func Listen(host string, port int) (net.Listener, error) {
	at := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, Explain(at, err)
	}
	return l, nil
}

// Explain returns a *TakenError for the error of a listener whose port is taken, and other errors as they are.
func Explain(at string, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	addr, rerr := net.ResolveTCPAddr("tcp", at)
	if rerr != nil {
		return err
	}
	return newTaken(err, addr.AddrPort())
}
