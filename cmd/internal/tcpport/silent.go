package tcpport

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// inetDiag is a request for all TCP sockets of one family in some states: struct inet_diag_req_v2 of linux/inet_diag.h.
type inetDiag struct {
	family byte
	states uint32
}

// Len implements nl.NetlinkRequestData.
func (inetDiag) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r inetDiag) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], r.states)
	return b
}

// silent returns the sockets that occupy an address although nobody listens there, with the uids of their users: sockets that are only
// bound, and connections. /proc does not list bound sockets; sock_diag does since Linux 6.8. silent leaves out what the kernel does not report.
func silent(at netip.AddrPort) map[string]string {
	const boundInactive = 13 // TCP_BOUND_INACTIVE
	inodes := map[string]string{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(inetDiag{family, 1<<boundInactive | 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_CLOSE_WAIT})
		answers, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			continue
		}
		for _, b := range answers {
			if have, uid, inode, ok := parseDiag(b); ok && inode != 0 && collide(have, at) {
				inodes[fmt.Sprintf("socket:[%d]", inode)] = fmt.Sprint(uid)
			}
		}
	}
	return inodes
}

// parseDiag reads a struct inet_diag_msg of linux/inet_diag.h.
func parseDiag(b []byte) (at netip.AddrPort, uid, inode uint32, ok bool) {
	if len(b) < 72 {
		return at, 0, 0, false
	}
	length := 4
	if b[0] == unix.AF_INET6 {
		length = 16
	}
	addr, ok := netip.AddrFromSlice(b[8 : 8+length])
	at = netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(b[4:]))
	return at, binary.NativeEndian.Uint32(b[64:]), binary.NativeEndian.Uint32(b[68:]), ok
}
