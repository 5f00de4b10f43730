package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A daemon that serves a device holds the abstract unix socket of that name. Such
// names belong to the network namespace, as the device does, whatever pid and
// mount namespaces its daemons live in, and end with the process.
const deviceClaimPrefix = "@overlayd/flannel."

// claimDevice claims the device of a VNI for this process.
func claimDevice(vni uint32) (net.PacketConn, error) {
	conn, err := net.ListenPacket("unixgram", fmt.Sprint(deviceClaimPrefix, vni))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("another overlayd in this network namespace serves flannel.%d: stop it, or give this one a prefix and VNI of its own", vni)
	}
	if err != nil {
		return nil, fmt.Errorf("claim device flannel.%d: %w", vni, err)
	}
	return conn, nil
}

// deviceClaims are claims of several devices.
type deviceClaims []net.PacketConn

func (d deviceClaims) release() {
	for _, c := range d {
		c.Close()
	}
}

// servedDevices lists the devices that daemons serve in the network namespace of
// the calling thread.
func servedDevices() (names []string, err error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if _, vni, ok := strings.Cut(s.Text(), " "+deviceClaimPrefix); ok {
			names = append(names, "flannel."+vni)
		}
	}
	return names, s.Err()
}
