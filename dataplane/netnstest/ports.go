package netnstest

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// takesPorts makes the test binary a process of another user that takes the ports from a number on; its value is that number, and
// what else TakePorts was told.
const takesPorts = "OVERLAYD_TEST_TAKES_PORTS"

const tookPorts = "took ports" // is what it says then

const (
	firstPort = 1024 // that every user may take
	allPorts  = 1 << 16
	portsEach = 8000 // of a process, which has two sockets for each
	nobody    = 65534
)

func init() {
	task, ok := os.LookupEnv(takesPorts)
	if !ok {
		return
	}
	number, to, _ := strings.Cut(task, " ")
	first, err := strconv.Atoi(number)
	if err == nil {
		store, _ := netip.ParseAddrPort(to)
		kinds := []int{unix.SOCK_STREAM, unix.SOCK_DGRAM}
		if to == "tcp" {
			kinds = kinds[:1]
		}
		err = takePorts(first, store, kinds)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// takePorts takes ports until the standard input ends.
func takePorts(first int, store netip.AddrPort, kinds []int) error {
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	for port := first; port < min(first+portsEach, allPorts); port++ {
		for _, kind := range kinds {
			fd, err := unix.Socket(unix.AF_INET6, kind, 0)
			if err != nil {
				return err
			}
			_ = unix.Bind(fd, &unix.SockaddrInet6{Port: port}) // another program may have it
			switch {
			case kind == unix.SOCK_DGRAM:
			case store.IsValid():
				_ = unix.SetNonblock(fd, true)
				_ = unix.Connect(fd, &unix.SockaddrInet6{Port: int(store.Port()), Addr: store.Addr().As16()})
			case port%2 > 0:
				_ = unix.Listen(fd, 1)
			}
		}
	}
	fmt.Println(tookPorts)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// TakePorts lets another user take every TCP and UDP port that no other program has, on every address of the host, until the test ends or
// free is called. what may be "tcp", for no UDP port, or an address to which there is a connection from each TCP port.
func (n *NS) TakePorts(tb testing.TB, what string) (free func()) {
	tb.Helper()
	var ends []func()
	for first := firstPort; first < allPorts; first += portsEach {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", takesPorts, first, what))
		in, err := cmd.StdinPipe()
		if err != nil {
			tb.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			tb.Fatal(err)
		}
		n.Must(cmd.Start)
		ends = append(ends, func() { in.Close(); cmd.Wait() })
		tb.Cleanup(ends[len(ends)-1])
		said, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || said != tookPorts+"\n" {
			tb.Fatalf("take ports: %s%v", said, err)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}
