package uplink

import (
	"encoding/binary"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// features asks which offloads links have (ethtool -k). Its socket is opened once.
type features struct{ fd int }

func openFeatures() features {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		fd = -1
	}
	return features{fd}
}

func (f features) close() {
	if f.fd >= 0 {
		unix.Close(f.fd)
	}
}

// tunnelFeatures are what a link needs so that superpackets of TCP inside of a tunnel stay whole on it.
func tunnelFeatures() []string {
	return []string{"tx-tcp-segmentation", "tx-udp_tnl-csum-segmentation"}
}

const (
	featureStrings = 4  // ETH_SS_FEATURES of linux/ethtool.h
	stringLen      = 32 // ETH_GSTRING_LEN
	stringsHeader  = 12 // struct ethtool_gstrings: command, set, number
	blockLen       = 16 // struct ethtool_get_features_block: available, requested, active, never changed
)

// takesWhole reports whether a link takes superpackets inside of a tunnel as they are.
func (f features) takesWhole(link string) bool {
	if f.fd < 0 {
		return false
	}
	native := binary.NativeEndian
	info := native.AppendUint32(nil, unix.ETHTOOL_GSSET_INFO) // struct ethtool_sset_info
	info = native.AppendUint64(append(info, 0, 0, 0, 0), 1<<featureStrings)
	info = append(info, 0, 0, 0, 0)
	if f.ask(link, info) != nil {
		return false
	}
	n := native.Uint32(info[16:])
	if n == 0 || n > 4096 {
		return false
	}
	names := make([]byte, stringsHeader+n*stringLen)
	native.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	native.PutUint32(names[4:], featureStrings)
	native.PutUint32(names[8:], n)
	blocks := (n + 31) / 32
	state := make([]byte, 8+blocks*blockLen) // struct ethtool_gfeatures
	native.PutUint32(state, unix.ETHTOOL_GFEATURES)
	native.PutUint32(state[4:], blocks)
	if f.ask(link, names) != nil || f.ask(link, state) != nil {
		return false
	}
	active := map[string]bool{}
	for i := range n {
		name, _, _ := strings.Cut(string(names[stringsHeader+i*stringLen:][:stringLen]), "\x00")
		active[name] = native.Uint32(state[8+i/32*blockLen+8:])>>(i%32)&1 != 0
	}
	for _, name := range tunnelFeatures() {
		if !active[name] {
			return false
		}
	}
	return true
}

// ask makes one ethtool ioctl. The kernel puts the answer in place of the question.
func (f features) ask(link string, question []byte) error {
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&question[0])}
	copy(req.name[:unix.IFNAMSIZ-1], link)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return os.NewSyscallError("ioctl SIOCETHTOOL", errno)
	}
	return nil
}
