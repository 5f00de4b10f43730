package uplink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/encap"
)

// Headroom is what Put needs in front of the VXLAN header, in bytes.
const Headroom = tun.TunnelHeaderLen + encap.MaxOuterLen

// The bits of struct virtio_net_hdr and its later fields (linux/virtio_net.h).
const (
	needsChecksum  = 1
	tunnelChecksum = 8 // the outer UDP checksum is partial, too
	typeTunnel4    = 0x20
	typeTunnel6    = 0x40
	typeECN        = 0x80
)

// Frame is one superpacket for [Way.Put].
type Frame struct {
	encap.OuterFields
	GSO       encap.GSO
	Size      uint16 // payload of each segment
	CsumStart uint16 // of the inner packet, as HeaderLen
	HeaderLen int
	CWR       bool // TCP's CWR is set: it is for the first segment only
}

// Put writes the vnet header and all outer headers in front of b[at:], which begins with the VXLAN header, and returns where
// they begin.
//
//	 0      1         2        4         6           8            10        12      20               22              24
//	+------+---------+--------+---------+-----------+------------+---------+-------+----------------+---------------+
//	|flags | gso_type| hdr_len| gso_size| csum_start| csum_offset| buffers | hash  | outer_th_offset| inner_nh_offset|
//	+------+---------+--------+---------+-----------+------------+---------+-------+----------------+---------------+
//
// The first fields are in host byte order, the last two little-endian. Offsets count from the Ethernet header.
func (w *Way) Put(b []byte, at int, f *Frame) (start int) {
	n := w.outer.Len()
	start = at - n - tun.TunnelHeaderLen
	w.outer.Put(b[at-n:at], len(b)-at, f.OuterFields)
	h := (*[tun.TunnelHeaderLen]byte)(b[start:])
	*h = [tun.TunnelHeaderLen]byte{needsChecksum | tunnelChecksum, byte(f.GSO) | typeTunnel4}
	if w.v6 {
		h[1] = byte(f.GSO) | typeTunnel6
	}
	if f.CWR {
		h[1] |= typeECN
	}
	inner := n + encap.HeaderLen
	native := binary.NativeEndian
	native.PutUint16(h[2:], uint16(inner+f.HeaderLen))
	native.PutUint16(h[4:], f.Size)
	native.PutUint16(h[6:], uint16(inner)+f.CsumStart)
	offset := uint16(16) // RFC 9293 section 3.1
	if f.GSO == encap.GSOUDP {
		offset = 6 // RFC 768
	}
	native.PutUint16(h[8:], offset)
	binary.LittleEndian.PutUint16(h[20:], uint16(w.outer.UDP()))
	binary.LittleEndian.PutUint16(h[22:], uint16(inner))
	return start
}

// Writer writes frames, on one goroutine.
type Writer struct {
	u     *Uplink
	frame []byte
	errno unix.Errno
	write func(fd uintptr) // made once, because a closure for each frame would be an allocation
}

// NewWriter returns a Writer of its own for one goroutine.
func (u *Uplink) NewWriter() *Writer {
	w := &Writer{u: u}
	w.write = func(fd uintptr) {
		for {
			_, w.errno = write(fd, w.frame) // it never waits: the sockets have what does not fit
			if w.errno != unix.EINTR {
				return
			}
		}
	}
	return w
}

// Write hands a frame that Put of a way has made to the kernel, with its vnet header. EAGAIN means that too many written bytes have not
// left yet. EINVAL concerns this frame. ENODEV means that the way has ended: a Refresh finds another one, or none. Any other errno concerns
// the device, which is then not used until a Refresh has made it again.
func (w *Writer) Write(way *Way, frame []byte) unix.Errno {
	d := way.device.Load()
	if d == nil || d != w.u.device.Load() { // a device that was made later drops what it has no next hop for
		return unix.ENODEV
	}
	w.frame = frame
	// Control holds the descriptor, but unlike Write no lock, for which the workers of all queues would wait.
	if err := d.conn.Control(w.write); err != nil {
		w.errno = unix.ENODEV // it is closed
	}
	w.frame = nil
	switch w.errno {
	case 0, unix.EAGAIN, unix.EINVAL:
	default:
		w.u.lose(d, w.errno)
	}
	return w.errno
}
