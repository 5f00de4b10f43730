// Package tcpport opens the TCP ports of a daemon, and says who has a port that is taken.
package tcpport

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen opens a port at an address of this host, which may be a name, or empty for every address. If another process
// has the port, the error names that.
func Listen(host string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	addr, rerr := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if rerr != nil {
		return nil, err
	}
	holder := cmp.Or(Holder(addr.AddrPort()), "a process that this one cannot see")
	return nil, fmt.Errorf("%w: %s has it", err, holder)
}
