// Package xtables reads the tables of iptables-legacy from the kernel, without a process, as libiptc does
// (linux/netfilter_ipv4/ip_tables.h, since 2.4; the structures are aligned as the machine's C does). Nothing is written.
package xtables

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Family is the address family of a table: nft.IPv4 or nft.IPv6.
type Family = nft.Family

// counters is struct xt_counters.
type counters [2]uint64 // packets, bytes

// ipt4Entry is struct ipt_entry: a rule without its matches and target.
type ipt4Entry struct {
	_            [84]byte // struct ipt_ip: addresses, interfaces and protocol
	_            uint32
	target, next uint16 // offsets of the target and of the next rule
	_            uint32
	counters     counters
}

// ipt6Entry is struct ip6t_entry.
type ipt6Entry struct {
	_            [136]byte // struct ip6t_ip6
	_            uint32
	target, next uint16
	_            uint32
	counters     counters
}

// info is struct ipt_getinfo.
type info struct {
	name            [32]byte
	valid           uint32
	hook, underflow [5]uint32
	entries, size   uint32
}

const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES
)

// readTries bounds how often a reading is repeated because the table has grown meanwhile.
const readTries = 10

// Table is the content of one table of one family.
type Table struct {
	Family  Family
	Name    string
	Entries []byte // all rules as the kernel has them, their counters zero
	info    info
}

// Names lists the tables that are in use in the calling thread's namespace. A table that is not in use is
// not to be read: the kernel would make it.
func Names(f Family) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/net/%s_tables_names", f))
	if os.IsNotExist(err) {
		return nil, nil // a kernel without iptables-legacy
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy iptables tables: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// Read reads one of Names.
func Read(f Family, name string) (Table, error) {
	t := Table{Family: f, Name: name}
	if err := t.read(); err != nil {
		return Table{}, fmt.Errorf("read legacy table %s: %w", name, err)
	}
	return t, nil
}

// Parse returns the table of which the kernel says that: about is struct ipt_getinfo, entries are those of struct ipt_get_entries. The
// table keeps the entries, and clears their counters.
func Parse(f Family, name string, about, entries []byte) Table {
	t := Table{Family: f, Name: name, Entries: entries}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&t.info)), unsafe.Sizeof(t.info)), about)
	t.clearCounters()
	return t
}

func (t *Table) read() error {
	domain, level := unix.AF_INET, unix.SOL_IP
	if t.Family == nft.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	// Any IP socket does; a raw one, as libiptc opens, would need CAP_NET_RAW.
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	const head = 32 + 4 // struct ipt_get_entries: name, size
	for range readTries {
		about := make([]byte, unsafe.Sizeof(info{}))
		copy(about, t.Name)
		if err := getsockopt(fd, level, getInfo, about); err != nil {
			return err
		}
		size := Parse(t.Family, t.Name, about, nil).info.size
		align := int(unsafe.Alignof(counters{}))
		start := (head + align - 1) / align * align
		buf := make([]byte, start+int(size))
		copy(buf, t.Name)
		*(*uint32)(unsafe.Pointer(&buf[32])) = size
		err := getsockopt(fd, level, getEntries, buf)
		if err == unix.EAGAIN { // it grew in between
			continue
		}
		if err != nil {
			return err
		}
		*t = Parse(t.Family, t.Name, about, buf[start:])
		return nil
	}
	return nft.ErrChanging
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

// layout says where the fields of a rule are, in bytes.
type layout struct{ target, next, counters, size int }

func layoutOf(f Family) layout {
	if f == nft.IPv6 {
		var e ipt6Entry
		return layout{int(unsafe.Offsetof(e.target)), int(unsafe.Offsetof(e.next)), int(unsafe.Offsetof(e.counters)), int(unsafe.Sizeof(e))}
	}
	var e ipt4Entry
	return layout{int(unsafe.Offsetof(e.target)), int(unsafe.Offsetof(e.next)), int(unsafe.Offsetof(e.counters)), int(unsafe.Sizeof(e))}
}

func uint16At(b []byte, at int) int { return int(*(*uint16)(unsafe.Pointer(&b[at]))) }

// Each calls do with the bytes of each rule: the entry, its matches, such as a comment, and its target.
func (t Table) Each(do func(entry []byte)) {
	l := layoutOf(t.Family)
	for rest := t.Entries; len(rest) >= l.size; {
		n := uint16At(rest, l.next)
		if n < l.size || n > len(rest) {
			return
		}
		do(rest[:n])
		rest = rest[n:]
	}
}

func (t Table) clearCounters() {
	at := layoutOf(t.Family).counters
	t.Each(func(e []byte) { clear(e[at : at+int(unsafe.Sizeof(counters{}))]) })
}

// errorTarget is the target of a rule that cannot match. Each chain that is not built in begins with one, which holds
// its name, and so ends the table, with the name ERROR.
const errorTarget = "ERROR"

// Chains returns the chains that are not built in.
func (t Table) Chains() (names []string) {
	t.Each(func(e []byte) {
		if name, ok := ChainName(t.Family, e); ok && name != errorTarget {
			names = append(names, name)
		}
	})
	return names
}

// ChainName returns the name that a rule has if it begins a chain, or ends the table.
func ChainName(f Family, entry []byte) (name string, ok bool) {
	const nameAt, nameLen = 32, 30 // struct xt_error_target
	t := uint16At(entry, layoutOf(f).target)
	if t+nameAt+nameLen > len(entry) || !bytes.HasPrefix(entry[t+2:], []byte(errorTarget+"\x00")) {
		return "", false
	}
	name, _, _ = strings.Cut(string(entry[t+nameAt:t+nameAt+nameLen]), "\x00")
	return name, true
}

// Drops reports whether the built-in chain at a hook, such as unix.NF_INET_FORWARD, drops by policy.
func (t Table) Drops(hook uint32) bool {
	_, policy, ok := t.First(hook)
	if !ok {
		return false
	}
	r, ok := t.ruleAt(policy)
	return ok && r.Target.Name == "" && r.Verdict == Drop
}
