package copier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/encap"
)

// What of an IPv4 header without options and the TCP header behind it is compared.
const (
	ipLen    = 20
	atLength = 2
	atSource = 12        // both addresses and both ports
	atSeq    = ipLen + 4 // sequence number
	atOffset = ipLen + 12
	tcpLen   = 20
)

// joiner joins TCP segments over IPv4 to one packet, and copies none of them: it keeps where they are. Each is still behind
// the headers of its datagram.
type joiner struct {
	list    []unix.Iovec
	first   []byte // the first datagram
	headers int    // bytes of the IP and TCP headers of a segment
	size    int    // bytes of the payload of each segment but the last
	length  int    // bytes of the packet
	next    uint32 // sequence number
}

// add appends a datagram, and reports whether it belongs to those before.
func (j *joiner) add(b []byte) bool {
	ip := b[encap.HeaderLen:]
	if len(ip) < ipLen+tcpLen || ip[0] != 0x45 || ip[9] != encap.ProtoTCP {
		return false
	}
	headers := ipLen + int(ip[atOffset]>>4)*4
	length := int(binary.BigEndian.Uint16(ip[atLength:]))
	if length > len(ip) || length <= headers || j.length+length > packetRoom-1 {
		return false
	}
	seq := binary.BigEndian.Uint32(ip[atSeq:])
	if len(j.list) == 0 {
		j.first, j.headers, j.size, j.length = b, headers, length-headers, length
		j.list = append(j.list, iovec(b[encap.HeaderLen-vnetLen:encap.HeaderLen+length]))
	} else {
		first := j.first[encap.HeaderLen:]
		if seq != j.next || headers != j.headers || length-headers > j.size || (j.length-headers)%j.size != 0 || !bytes.Equal(ip[atSource:atSeq], first[atSource:atSeq]) {
			return false
		}
		j.list = append(j.list, iovec(ip[headers:length]))
		j.length += length - headers
	}
	j.next = seq + uint32(length-headers)
	return true
}

// flush writes the packet to the device.
func (j *joiner) flush(c *copier) {
	if len(j.list) < 2 {
		if len(j.list) == 1 {
			c.deliver(j.first)
		}
		j.list, j.length = j.list[:0], 0
		return
	}
	packet := j.first[encap.HeaderLen:]
	binary.BigEndian.PutUint16(packet[atLength:], uint16(j.length))
	binary.BigEndian.PutUint16(packet[10:], 0)
	binary.BigEndian.PutUint16(packet[10:], ^encap.Sum(packet[:ipLen], 0))
	pseudo := encap.Sum(packet[atSource:ipLen], encap.Fold(uint64(encap.ProtoTCP)+uint64(j.length-ipLen)))
	binary.BigEndian.PutUint16(packet[ipLen+16:], pseudo)
	putVnet(j.first[encap.HeaderLen-vnetLen:], encap.Offload{GSO: encap.GSOTCPv4, Partial: true, HdrLen: uint16(j.headers), Size: uint16(j.size), CsumStart: ipLen, CsumOffset: 16})
	_, _, _ = unix.Syscall(unix.SYS_WRITEV, uintptr(c.tun), uintptr(unsafe.Pointer(&j.list[0])), uintptr(len(j.list)))
	j.list, j.length = j.list[:0], 0
}

func iovec(b []byte) unix.Iovec { return unix.Iovec{Base: &b[0], Len: uint64(len(b))} }

// slots is how many datagrams, or runs of them, one call receives. The kernel joins datagrams to runs (UDP_GRO) only if they have a
// checksum, and its own vxlan device writes none over IPv4.
const slots = 64

// slot is one of them.
type slot struct {
	msg unix.Msghdr
	n   uint32 // struct mmsghdr
	_   uint32
}

// receiveJoining is receive for an underlay that passes no superpackets.
func (c *copier) receiveJoining() error {
	runtime.LockOSThread()
	const stride = packetRoom + 2048 // with the same offset in each page they would not be in the cache together
	b, control := make([]byte, slots*stride), make([]byte, slots*unix.CmsgSpace(4))
	var v [slots]unix.Iovec
	var all [slots]slot
	j := joiner{list: make([]unix.Iovec, 0, 2*slots)}
	for {
		for i := range all {
			v[i] = iovec(b[i*stride:][:packetRoom])
			all[i].msg = unix.Msghdr{Iov: &v[i], Iovlen: 1, Control: &control[i*unix.CmsgSpace(4)], Controllen: uint64(unix.CmsgSpace(4))}
		}
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(c.socket), uintptr(unsafe.Pointer(&all[0])), slots, unix.MSG_WAITFORONE, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return fmt.Errorf("receive: %w", os.NewSyscallError("recvmmsg", errno))
		}
		for i := range all[:n] {
			rest := b[i*stride:][:all[i].n]
			size := len(rest)
			if all[i].msg.Controllen >= uint64(unix.CmsgLen(4)) { // only UDP_GRO was asked for
				size = int(binary.NativeEndian.Uint32(control[i*unix.CmsgSpace(4)+unix.CmsgLen(0):]))
			}
			for ; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				c.take(&j, rest[:min(size, len(rest))])
			}
		}
		j.flush(c)
	}
}

// take adds a datagram to the packet, or begins another one with it.
func (c *copier) take(j *joiner, d []byte) {
	if len(d) <= encap.HeaderLen || j.add(d) {
		return
	}
	if j.flush(c); !j.add(d) {
		c.deliver(d)
	}
}
