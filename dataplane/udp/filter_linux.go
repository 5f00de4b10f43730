package udp

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// minDatagram is the least length of what is taken, UDP header included: VXLAN, Ethernet and an IPv4 header.
const minDatagram = 8 + 22 + 20

// Attach makes f the filter of a socket, at once: no datagram is judged by none, or by two.
func (f Filter) Attach(fd int, v6 bool) error {
	code := f.program(v6)
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
}

// DetachFilter takes the filter of a socket away, if it has one.
func DetachFilter(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err == unix.ENOENT {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_DETACH_FILTER", err)
}

const (
	skfNetOff = 0xfff00000      // SKF_NET_OFF: from the IP header on
	skfRandom = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM (Linux 3.16)
	takeAll   = 0x40000         // bytes: more than any datagram has
)

// assembler collects classic BPF (Documentation/networking/filter.rst of Linux).
type assembler []unix.SockFilter

func (a *assembler) add(code uint16, k uint32) { *a = append(*a, unix.SockFilter{Code: code, K: k}) }

// jump goes on yes, or no, instructions behind the next one.
func (a *assembler) jump(test uint16, k uint32, yes, no uint8) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k})
}

func (a *assembler) load(off uint32) { a.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off) }

func (a *assembler) take() { a.add(unix.BPF_RET|unix.BPF_K, takeAll) }

// drop drops all but a sample.
func (a *assembler) drop() {
	a.load(skfRandom)
	a.jump(unix.BPF_JGE, 1<<24, 0, 1)
	a.add(unix.BPF_RET|unix.BPF_K, 0)
	a.take()
}

// program is the filter. The packet begins with its UDP header.
func (f Filter) program(v6 bool) []unix.SockFilter {
	var a assembler
	a.add(unix.BPF_LD|unix.BPF_W|unix.BPF_LEN, 0)
	a.jump(unix.BPF_JGE, minDatagram, 4, 0)
	a.drop()
	a.load(8) // VXLAN: flags I alone, and 24 reserved bits
	a.jump(unix.BPF_JEQ, 0x08<<24, 4, 0)
	a.drop()
	a.load(12) // VNI, and 8 reserved bits
	for _, vni := range f.VNIs {
		a.jump(unix.BPF_JEQ, vni<<8, 0, 1)
		a.add(unix.BPF_JMP|unix.BPF_JA, 0) // set below: on to the source
	}
	jumps := len(a)
	a.drop()
	for i := jumps - 1; a[i].Code == unix.BPF_JMP|unix.BPF_JA; i -= 2 {
		a[i].K = uint32(len(a) - i - 1)
	}
	switch {
	case f.Sources == nil:
		a.take()
	case v6:
		a.load(skfNetOff + 8 + 12)
		a.sources6(f.Sources)
	default:
		a.load(skfNetOff + 12)
		a.sources4(f.Sources)
	}
	return a
}

// sources4 takes what has one of these sources, sorted, by halves. The one of the packet is loaded.
func (a *assembler) sources4(sources []netip.Addr) {
	if len(sources) <= 1 {
		for _, s := range sources {
			a.jump(unix.BPF_JEQ, word(s, 0), 0, 1)
			a.take()
		}
		a.drop()
		return
	}
	half := len(sources) / 2
	a.jump(unix.BPF_JGE, word(sources[half], 0), 0, 1)
	at := len(*a)
	a.add(unix.BPF_JMP|unix.BPF_JA, 0)
	a.sources4(sources[:half])
	(*a)[at].K = uint32(len(*a) - at - 1)
	a.sources4(sources[half:])
}

// sources6 is the same for IPv6, of which the last word is loaded: one after the other, as long programs
// for all four words of each would not fit.
func (a *assembler) sources6(sources []netip.Addr) {
	for _, s := range sources {
		a.jump(unix.BPF_JEQ, word(s, 12), 0, 8)
		for _, off := range []uint32{8, 4, 0} {
			a.load(skfNetOff + 8 + off)
			a.jump(unix.BPF_JEQ, word(s, int(off)), 0, uint8(off/2+1)) // on to the load below
		}
		a.take()
		a.load(skfNetOff + 8 + 12)
	}
	a.drop()
}

// word returns 4 bytes of an address.
func word(a netip.Addr, off int) uint32 { return binary.BigEndian.Uint32(a.AsSlice()[off:]) }
