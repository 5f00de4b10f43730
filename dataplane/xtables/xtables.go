package masq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// The tables of iptables-legacy are read from the kernel without a process, as
// libiptc reads them (linux/netfilter_ipv4/ip_tables.h, since 2.4; the structures
// are aligned as the machine's C does). They are only compared and searched.

// xtCounters is struct xt_counters.
type xtCounters [2]uint64 // packets, bytes

// iptEntry is struct ipt_entry: a rule without its matches and target.
type iptEntry struct {
	_            [84]byte // addresses, interfaces and protocol
	_            uint32
	target, next uint16 // offsets of the target and of the next rule
	_            uint32
	counters     xtCounters
}

// ip6tEntry is struct ip6t_entry.
type ip6tEntry struct {
	_            [136]byte
	_            uint32
	target, next uint16
	_            uint32
	counters     xtCounters
}

// iptInfo is struct ipt_getinfo.
type iptInfo struct {
	name            [32]byte
	valid           uint32
	hook, underflow [5]uint32
	entries, size   uint32
}

const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES
)

// legacyTables is what iptables-legacy has in one family, both tables of interest.
type legacyTables struct {
	text   string   // all rules without counters; "" without a table
	chains []string // those that are not built in
	drops  bool     // FORWARD drops by policy

	flannel []netip.Prefix // that rules of flannel name
}

// mentions reports whether there are chains of ours or of flannel.
func (l legacyTables) mentions() bool {
	return l.hasOurs() || slices.ContainsFunc(l.chains, isFlannels)
}

// hasOurs reports whether there are chains of ours, of any network.
func (l legacyTables) hasOurs() bool { return slices.ContainsFunc(l.chains, isOurChain) }

// readLegacy reads the tables that are in use in the calling thread's namespace.
// A table that is not in use is not touched: the kernel would make it.
func readLegacy(f family) (l legacyTables, err error) {
	file := fmt.Sprintf("/proc/thread-self/net/%s_tables_names", f)
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return l, nil // a kernel without iptables-legacy
	}
	if err != nil {
		return l, fmt.Errorf("list legacy iptables tables: %w", err)
	}
	for _, table := range []string{natTable, filterTable} {
		if !slices.Contains(strings.Fields(string(b)), table) {
			continue
		}
		entries, drops, err := readLegacyTable(f, table)
		if err != nil {
			return legacyTables{}, fmt.Errorf("read legacy table %s: %w", table, err)
		}
		l.text += table + "\n" + string(entries)
		l.chains = append(l.chains, chainsIn(f, entries)...)
		l.flannel = append(l.flannel, flannelIn(f, entries)...)
		l.drops = l.drops || drops
	}
	return l, nil
}

func readLegacyTable(f family, table string) (entries []byte, drops bool, err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == ipv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	// Any IP socket does; a raw one, as libiptc opens, would need CAP_NET_RAW.
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	const info, head = int(unsafe.Sizeof(iptInfo{})), 32 + 4 // struct ipt_get_entries: name, size
	for range 10 {
		buf := make([]byte, info)
		copy(buf, table)
		if err := getsockopt(fd, level, getInfo, buf); err != nil {
			return nil, false, err
		}
		i := *(*iptInfo)(unsafe.Pointer(unsafe.SliceData(buf)))
		align := int(unsafe.Alignof(xtCounters{}))
		start := (head + align - 1) / align * align
		buf = make([]byte, start+int(i.size))
		copy(buf, table)
		*(*uint32)(unsafe.Pointer(&buf[32])) = i.size
		err := getsockopt(fd, level, getEntries, buf)
		if err == unix.EAGAIN { // it grew in between
			continue
		}
		if err != nil {
			return nil, false, err
		}
		entries = buf[start:]
		clearCounters(f, entries)
		const forward = 2 // NF_INET_FORWARD
		return entries, i.valid&(1<<forward) != 0 && isDrop(f, entries, i.underflow[forward]), nil
	}
	return nil, false, nft.ErrChanging
}

func getsockopt(fd, level, option int, buf []byte) error {
	n := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entryOffsets returns where the offsets and the counters are in a rule.
func entryOffsets(f family) (target, next, counters, size int) {
	if f == ipv6 {
		var e ip6tEntry
		return int(unsafe.Offsetof(e.target)), int(unsafe.Offsetof(e.next)), int(unsafe.Offsetof(e.counters)), int(unsafe.Sizeof(e))
	}
	var e iptEntry
	return int(unsafe.Offsetof(e.target)), int(unsafe.Offsetof(e.next)), int(unsafe.Offsetof(e.counters)), int(unsafe.Sizeof(e))
}

// eachEntry calls do with the bytes of each rule: the entry, its matches, such as a comment, and
// its target.
func eachEntry(f family, entries []byte, do func(entry []byte)) {
	_, next, _, size := entryOffsets(f)
	for len(entries) >= size {
		n := int(*(*uint16)(unsafe.Pointer(&entries[next])))
		if n < size || n > len(entries) {
			return
		}
		do(entries[:n])
		entries = entries[n:]
	}
}

func clearCounters(f family, entries []byte) {
	_, _, counters, _ := entryOffsets(f)
	eachEntry(f, entries, func(e []byte) { clear(e[counters : counters+int(unsafe.Sizeof(xtCounters{}))]) })
}

// chainsIn returns the chains that are not built in. Each begins with a rule that cannot match,
// whose target is ERROR with the name of the chain; so ends the table, with the name ERROR.
func chainsIn(f family, entries []byte) (names []string) {
	eachEntry(f, entries, func(e []byte) {
		if name, ok := chainName(f, e); ok && name != errorTarget {
			names = append(names, name)
		}
	})
	return names
}

const errorTarget = "ERROR"

// chainName returns the name that a rule has if it begins a chain, or ends the table.
func chainName(f family, entry []byte) (name string, ok bool) {
	const nameAt, nameLen = 32, 30 // struct xt_error_target
	target, _, _, _ := entryOffsets(f)
	t := int(*(*uint16)(unsafe.Pointer(&entry[target])))
	if t+nameAt+nameLen > len(entry) || !bytes.HasPrefix(entry[t+2:], []byte(errorTarget+"\x00")) {
		return "", false
	}
	name, _, _ = strings.Cut(string(entry[t+nameAt:t+nameAt+nameLen]), "\x00")
	return name, true
}

// isDrop reports whether the rule at an offset, which holds a policy, drops.
func isDrop(f family, entries []byte, at uint32) bool {
	target, _, _, size := entryOffsets(f)
	if int(at)+size > len(entries) {
		return false
	}
	e := entries[at:]
	t := int(*(*uint16)(unsafe.Pointer(&e[target])))
	const verdict = 32 // after struct xt_entry_target
	if t+verdict+4 > len(e) {
		return false
	}
	drop := binary.NativeEndian.AppendUint32(nil, ^uint32(0)) // -NF_DROP-1
	return bytes.Equal(e[t+verdict:t+verdict+4], drop)
}
