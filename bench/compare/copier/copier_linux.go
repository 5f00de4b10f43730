// Package copier carries packets between a TUN device and one VXLAN peer, and does nothing else: no lookup, no checks, no
// counters. Each of its threads waits in one system call, and has one buffer that stays in the cache. So `make compare` shows what a
// userspace dataplane can reach on the machine that it runs on, whoever writes it. An underlay may pass superpackets
// whole, or in datagrams of its MTU, which a copier joins again as they come: it looks only at what decides whether they
// belong together.
package copier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/uplink"
	"github.com/overlayd/overlayd/encap"
)

// Config says what is carried.
type Config struct {
	Device      string     // name of the TUN device; it goes with the process
	Local, Peer netip.Addr // on the underlay
	LocalMAC    encap.MAC
	PeerMAC     encap.MAC
	VNI         uint32
	Join        bool // the underlay does not pass superpackets
	Cut         bool // nor does the peer's kernel join them: superpackets go by sockets, in segments
}

const (
	vnetLen     = 10 // of struct virtio_net_hdr (linux/virtio_net.h)
	packetRoom  = 64 << 10
	bufferBytes = 8 << 20 // of the sockets and the uplink
	patience    = 5 * time.Second
	// segment is the payload of the segments of a received superpacket, whose size a socket does not tell (dataplane/carrier/guess.go).
	segment = 1200
)

// MTU is that of the device: its longest packet that is no superpacket.
const MTU = 1450

// copier is one queue.
type copier struct {
	tun, socket, uplink int // files that block
	way                 *uplink.Way
	to                  unix.SockaddrInet4
	segmenter           *segmenter // nil: the uplink sends superpackets
	template            encap.Template
	id                  uint16 // of the next outer IPv4 header
}

// Run copies until the process ends, or a file fails. The device has a queue for each processor, and each queue a thread for
// either direction.
func Run(cfg Config) error {
	// The policy of overlayd. A build with cgo cannot set it.
	priority := int32(0) // struct sched_param
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_BATCH, uintptr(unsafe.Pointer(&priority)))
	queues := runtime.NumCPU()
	// Each thread that waits in a system call keeps one of Go's processors for a while.
	runtime.GOMAXPROCS(queues + 2*queues)
	fds, err := openTUN(cfg.Device, queues)
	if err != nil {
		return err
	}
	up, file, way, err := openUplink(cfg)
	if err != nil {
		return err
	}
	defer up.Close()
	var g errgroup.Group
	for _, fd := range fds {
		s, err := openSocket(cfg.Local, encap.DefaultPort)
		if err != nil {
			return err
		}
		c := &copier{
			tun: fd, socket: s, uplink: file, way: way, template: encap.NewTemplate(cfg.VNI, cfg.PeerMAC, cfg.LocalMAC),
			to: unix.SockaddrInet4{Addr: cfg.Peer.As4(), Port: encap.DefaultPort},
		}
		if cfg.Cut {
			if c.segmenter, err = newSegmenter(&cfg); err != nil {
				return err
			}
		}
		receive := c.receive
		if cfg.Join {
			receive = c.receiveJoining
			if err := unix.SetsockoptInt(s, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
				return os.NewSyscallError("setsockopt UDP_GRO", err)
			}
		}
		g.Go(c.send)
		g.Go(receive)
	}
	return g.Wait()
}

func openTUN(name string, n int) (fds []int, err error) {
	for range n {
		fd, err := tun.Attach(name, tun.Mode{Vnet: true, Multi: true})
		if err != nil {
			return nil, err
		}
		if _, err := tun.SetOffloads(fd, true); err != nil {
			return nil, err
		}
		if err := unix.SetNonblock(fd, false); err != nil {
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// openUplink also waits for the way to the peer.
func openUplink(cfg Config) (u *uplink.Uplink, fd int, way *uplink.Way, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	u, err = uplink.Open(uplink.Config{Log: log, Local: cfg.Local, Port: encap.DefaultPort, TTL: 64})
	if err != nil {
		return nil, 0, nil, err
	}
	to := []uplink.Destination{{Addr: cfg.Peer, Set: func(w *uplink.Way) { way = w }}}
	for end := time.Now().Add(patience); way == nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		u.Hurry()
		u.Refresh(to)
	}
	if way == nil {
		return nil, 0, nil, fmt.Errorf("the uplink found no way to %s", cfg.Peer)
	}
	conn, err := u.File().SyscallConn()
	if err == nil {
		err = conn.Control(func(f uintptr) { fd = int(f) })
	}
	return u, fd, way, errors.Join(err, unix.SetNonblock(fd, false))
}

// openSocket opens a socket of that port, which all of them share; 0: of a port of its own.
func openSocket(local netip.Addr, port int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferBytes),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: local.As4(), Port: port}))
}

// send copies packets from the device to the underlay.
func (c *copier) send() error {
	runtime.LockOSThread()
	const at = uplink.Headroom + encap.HeaderLen // where packets begin
	b := make([]byte, at+packetRoom)
	for {
		n, err := call(unix.SYS_READ, c.tun, b[at-vnetLen:])
		if err != nil {
			return fmt.Errorf("read from the device: %w", err)
		}
		end := at - vnetLen + n
		h, ip := b[at-vnetLen:at], b[at:end]
		o := encap.Offload{
			GSO: encap.GSO(h[1] & 7), Partial: h[0]&1 != 0, Size: binary.NativeEndian.Uint16(h[4:]),
			CsumStart: binary.NativeEndian.Uint16(h[6:]), CsumOffset: binary.NativeEndian.Uint16(h[8:]),
		}
		if o.GSO != encap.GSONone {
			if c.segmenter != nil {
				err = c.segmenter.send(ip, o, &c.template)
			} else {
				err = c.sendWhole(b[:end], at-encap.HeaderLen, o)
			}
			if err != nil {
				return fmt.Errorf("send a superpacket: %w", err)
			}
			continue
		}
		if o.Partial {
			o.Complete(ip)
		}
		c.template.Put(b[at-encap.HeaderLen:], encap.EtherTypeIPv4)
		_ = unix.Sendto(c.socket, b[at-encap.HeaderLen:end], 0, &c.to) // the peer may not be there yet
	}
}

// sendWhole sends the TCP superpacket whose VXLAN header is to be at b[at:].
func (c *copier) sendWhole(b []byte, at int, o encap.Offload) error {
	ip := b[at+encap.HeaderLen:]
	c.template.Put(b[at:], encap.EtherTypeIPv4)
	f := uplink.Frame{GSO: o.GSO, Size: o.Size, CsumStart: o.CsumStart, HeaderLen: int(o.CsumStart) + 8}
	if o.GSO != encap.GSOUDP {
		f.HeaderLen = int(o.CsumStart) + int(ip[o.CsumStart+12]>>4)*4
	}
	f.Port, f.ID = 1<<15|uint16(encap.QuickHash(ip))>>1, c.id
	c.id += packetRoom / segment
	start := c.way.Put(b, at, &f)
	_, err := call(unix.SYS_WRITE, c.uplink, b[start:])
	return err
}

// receive copies packets from the underlay to the device.
func (c *copier) receive() error {
	runtime.LockOSThread()
	b := make([]byte, encap.HeaderLen+packetRoom)
	for {
		n, err := call(unix.SYS_READ, c.socket, b)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		c.deliver(b[:n])
	}
}

// deliver writes the packet of one datagram to the device. It overwrites the datagram's headers.
func (c *copier) deliver(b []byte) {
	packet := b[min(len(b), encap.HeaderLen):]
	var ip encap.IP
	if encap.ParseIP(packet, &ip) != nil {
		return
	}
	var o encap.Offload
	if encap.IsPartial(packet, &ip) {
		if len(packet) > MTU {
			o, _ = encap.SuperOffload(packet, &ip, segment)
		} else {
			o, _ = encap.PartialOffload(packet, &ip)
		}
	}
	h := b[encap.HeaderLen-vnetLen:]
	putVnet(h, o)
	_, _ = call(unix.SYS_WRITE, c.tun, h[:vnetLen+ip.Len]) // the device may not be up yet
}

// putVnet writes a struct virtio_net_hdr.
func putVnet(h []byte, o encap.Offload) {
	clear(h[:vnetLen])
	if o.Partial {
		h[0], h[1] = 1, byte(o.GSO)
		for i, v := range []uint16{o.HdrLen, o.Size, o.CsumStart, o.CsumOffset} {
			binary.NativeEndian.PutUint16(h[2+2*i:], v)
		}
	}
}

// call makes a system call that reads or writes b.
func call(number uintptr, fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.Syscall(number, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}
