package agent

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/encap"
)

// ForgeICMP asks for messages to To that the path from there to About is narrow, about datagrams of these ports and of all that
// a kernel gives to sockets.
type ForgeICMP struct {
	To, About netip.Addr
	Ports     []uint16
}

// UDPPorts returns the local ports of all UDP sockets of the host.
func (a *Agent) UDPPorts(_ Nothing, ports *[]uint16) error {
	for _, file := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			local := strings.Fields(line)[1]
			if local == "local_address" {
				continue
			}
			var port uint16
			if _, err := fmt.Sscanf(local[strings.LastIndex(local, ":"):], ":%x", &port); err != nil {
				return fmt.Errorf("%s: %q: %w", file, local, err)
			}
			*ports = append(*ports, port)
		}
	}
	return nil
}

// ForgeICMP sends them all, and counts them.
func (a *Agent) ForgeICMP(in ForgeICMP, sent *int) error {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var to unix.Sockaddr
	if in.To.Is4() {
		to = &unix.SockaddrInet4{Addr: in.To.As4()}
	} else {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		to = &unix.SockaddrInet6{Addr: in.To.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	send := func(port, mtu uint16, quote int) error {
		*sent++
		return unix.Sendto(fd, in.message(port, mtu, quote), 0, to)
	}
	for _, port := range in.Ports {
		for _, mtu := range forgedMTUs {
			for _, quote := range []int{8, 500} { // a router quotes no less, and many quote as much as fits
				if err := send(port, mtu, quote); err != nil {
					return err
				}
			}
		}
	}
	for i, p := range rand.Perm(lastPort - firstPort + 1) {
		if err := send(uint16(firstPort+p), forgedMTUs[i%len(forgedMTUs)], 8); err != nil {
			return err
		}
	}
	return nil
}

// firstPort and lastPort are net.ipv4.ip_local_port_range.
const firstPort, lastPort = 32768, 60999

var forgedMTUs = []uint16{68, 552, 1280, 1300}

// message is "fragmentation needed" (RFC 792, RFC 1191) or "packet too big" (RFC 4443 section 3.2) about a datagram of 1400 bytes.
// The kernel adds the checksum of ICMPv6.
func (f ForgeICMP) message(port, mtu uint16, quote int) []byte {
	quoted := Datagram(f.To, f.About, port, encap.DefaultPort, make([]byte, 1400))
	if f.To.Is6() {
		m := []byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}
		return append(m, quoted[:40+quote]...)
	}
	m := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted[:20+quote]...)
	binary.BigEndian.PutUint16(m[2:], ^encap.Sum(m, 0))
	return m
}
