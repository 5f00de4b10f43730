package tcpport

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/control"
)

// Holder returns who listens at an address of this network namespace, or at all of them if it is unspecified: the
// name of a program and its process, as in `nginx (pid 12)`. It is empty if no process that this one can see does.
func Holder(at netip.AddrPort) string { return program(sockets("tcp", at)) }

// HolderUDP returns who has a UDP port of this network namespace at any address. Of a process that this one cannot see it
// tells the user; it is empty if no process has the port, as when a device of the kernel has.
func HolderUDP(port uint16) string {
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	holders := sockets("udp", at)
	if name := program(holders); name != "" {
		return name
	}
	for _, uid := range holders {
		return "a process of user " + uid
	}
	return ""
}

// sockets returns the sockets of a protocol that keep others from at, and the uids of their users. The kernel's own are left out.
func sockets(protocol string, at netip.AddrPort) map[string]string {
	inodes := map[string]string{}
	for _, table := range []string{protocol, protocol + "6"} {
		holding(filepath.Join("/proc/thread-self/net", table), protocol == "udp", at, inodes)
	}
	delete(inodes, "socket:[0]")
	return inodes
}

// program returns which process has one of the sockets, as in `nginx (pid 12)`; empty if this process sees none.
func program(inodes map[string]string) string {
	if len(inodes) == 0 {
		return ""
	}
	for _, pid := range processes() {
		if hasSocket(pid, inodes) {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err != nil {
				continue
			}
			return fmt.Sprintf("%s (pid %d)", control.Printable(strings.TrimSpace(string(name)), 64), pid)
		}
	}
	return ""
}

// holding adds the sockets of a table that keep others from at. A UDP socket does so whether it is connected or not.
func holding(table string, connected bool, at netip.AddrPort, inodes map[string]string) {
	f, err := os.Open(table)
	if err != nil {
		return // a kernel without IPv6 has no tcp6
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if have, inode, ok := parseSocket(s.Text(), connected); ok && collide(have, at) {
			inodes["socket:["+inode+"]"] = strings.Fields(s.Text())[7] // uid
		}
	}
}

// parseSocket reads a line of /proc/net/tcp or tcp6 (Linux, Documentation/networking/proc_net_tcp.rst), or of udp or udp6:
// number, local address, remote address, state, and the inode as the tenth field. It is not ok for a
// connection, unless connected.
func parseSocket(line string, connected bool) (at netip.AddrPort, inode string, ok bool) {
	const listen, bound, established = "0A", "07", "01" // TCP_LISTEN; what a UDP socket has that is bound, and one that is connected too
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listen && fields[3] != bound && !(connected && fields[3] == established) {
		return at, "", false
	}
	addr, port, _ := strings.Cut(fields[1], ":")
	p, perr := strconv.ParseUint(port, 16, 16)
	b, err := hex.DecodeString(addr)
	if err != nil || perr != nil || len(b)%4 != 0 {
		return at, "", false
	}
	for i := 0; i < len(b); i += 4 { // each word is a number of this machine, whose memory is in network order
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(p)), fields[9], ok
}

// collide reports whether two sockets cannot listen beside each other.
func collide(a, b netip.AddrPort) bool {
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	return a.Port() == b.Port() && (x == y || covers(x, y) || covers(y, x))
}

// covers reports whether a stands for every address of a host, b among them: 0.0.0.0 has those of IPv4 alone.
func covers(a, b netip.Addr) bool {
	return !a.IsValid() || a.IsUnspecified() && (a.Is6() || b.Is4() || !b.IsValid() || b.IsUnspecified())
}

// processes returns the pids that there are, the lowest first: a parent comes before those that have its sockets from it.
func processes() (pids []int) {
	entries, _ := os.ReadDir("/proc") // without it nobody is found
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, cmp.Compare)
	return pids
}

// hasSocket reports whether a process has one of the sockets open. Of other users' processes that is known to root only.
func hasSocket(pid int, sockets map[string]string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		link, err := os.Readlink(filepath.Join(dir, f.Name()))
		return err == nil && sockets[link] != ""
	})
}
