package nft

import (
	"fmt"
	"iter"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// KeyType is what the nft command shows the keys of a set as. The kernel keeps it without a look at it.
type KeyType uint32

// The types of keys, as libnftables numbers them (datatype.h).
const (
	KeyIPv4 KeyType = 7
	KeyIPv6 KeyType = 8
)

// size is the length of a key of one type, in bytes.
func (k KeyType) size() int {
	if k == KeyIPv6 {
		return 16
	}
	return 4
}

// Set is a hash set of single keys: each is the concatenation of a value of every type.
type Set struct {
	Name string
	Keys []KeyType
}

// KeyLen is the length of a key, in bytes.
func (s Set) KeyLen() (n int) {
	for _, k := range s.Keys {
		n += k.size()
	}
	return n
}

// NewSet adds an empty set, unless one with that name exists. id tells it from the other sets of the batch.
func NewSet(f Family, table string, s Set, id uint32) Step {
	const bitsPerType = 6 // of a concatenation (libnftables' TYPE_BITS)
	shown := uint32(0)
	for _, k := range s.Keys {
		shown = shown<<bitsPerType | uint32(k)
	}
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, table)
		e.String(unix.NFTA_SET_NAME, s.Name)
		e.Uint32(unix.NFTA_SET_FLAGS, 0)
		e.Uint32(unix.NFTA_SET_KEY_TYPE, shown)
		e.Uint32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen()))
		e.Uint32(unix.NFTA_SET_ID, id)
	})
	return Step{message(unix.NFT_MSG_NEWSET, f, netlink.Create, attrs), fmt.Sprintf("add set %s %s %s", f, table, s.Name)}
}

// DeleteSet deletes a set, which no rule may use.
func DeleteSet(f Family, table, set string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, table)
		e.String(unix.NFTA_SET_NAME, set)
	})
	return Step{message(unix.NFT_MSG_DELSET, f, 0, attrs), fmt.Sprintf("delete set %s %s %s", f, table, set)}
}

// perStep is how many keys one step has: a netlink attribute holds 64 KiB.
const perStep = 1000

// AddElements adds keys to a set; those that it has stay.
func AddElements(f Family, table, set string, keys []string) []Step {
	return elementSteps(unix.NFT_MSG_NEWSETELEM, netlink.Create, "add elements to", f, table, set, keys)
}

// DeleteElements removes keys from a set, which must have them.
func DeleteElements(f Family, table, set string, keys []string) []Step {
	return elementSteps(unix.NFT_MSG_DELSETELEM, 0, "delete elements of", f, table, set, keys)
}

func elementSteps(kind int, flags netlink.HeaderFlags, verb string, f Family, table, set string, keys []string) (steps []Step) {
	for len(keys) > 0 {
		some := keys[:min(len(keys), perStep)]
		keys = keys[len(some):]
		attrs := attributes(func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
			e.Bytes(unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS, encodeKeys(some))
		})
		steps = append(steps, Step{message(kind, f, flags, attrs), fmt.Sprintf("%s set %s %s %s", verb, f, table, set)})
	}
	return steps
}

// encodeKeys encodes the elements by hand: the encoder of the library takes ten times as long for 10 000.
func encodeKeys(keys []string) (b []byte) {
	const header = unix.SizeofNlAttr
	for _, k := range keys {
		padded := (len(k) + 3) &^ 3
		b = appendHeader(b, unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, 2*header+padded)
		b = appendHeader(b, unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_KEY, header+padded)
		b = appendHeader(b, unix.NFTA_DATA_VALUE, len(k))
		b = append(b, k...)
		b = append(b, make([]byte, padded-len(k))...)
	}
	return b
}

func appendHeader(b []byte, kind uint16, length int) []byte {
	b = nativeEndian.AppendUint16(b, uint16(length+unix.SizeofNlAttr))
	return nativeEndian.AppendUint16(b, kind)
}

// Elements lists the keys of a set, each length bytes long. An element that stands for all keys (the * of the nft command) has an empty key here.
func (r Reader) Elements(table, set string, length int) (keys []string, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETSETELEM, r.Family, netlink.Dump, attrs))
	if err != nil {
		return nil, fmt.Errorf("list set %s %s %s: %w", r.Family, table, set, err)
	}
	for _, b := range bodies {
		if err := eachElement(b, func(key []byte) {
			if len(key) >= length || key == nil {
				keys = append(keys, string(key[:min(length, len(key))]))
			}
		}); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// Sets lists the names of the sets of a table.
func (r Reader) Sets(table string) (names []string, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_SET_TABLE, table) })
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETSET, r.Family, netlink.Dump, attrs))
	if err != nil {
		return nil, fmt.Errorf("list the sets of table %s %s: %w", r.Family, table, err)
	}
	for _, b := range bodies {
		if err := decode(b, func(d *netlink.AttributeDecoder) {
			if d.Type() == unix.NFTA_SET_NAME {
				names = append(names, d.String())
			}
		}); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// eachElement calls do with the key of every element of an answer, and with nil for an element that stands for all keys. The walk is by hand, as in encodeKeys.
func eachElement(b []byte, do func(key []byte)) error {
	return decode(b, func(d *netlink.AttributeDecoder) {
		if d.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		for element := range nested(d.Bytes()) {
			all := true
			for a := range nested(element.value) {
				if a.kind != unix.NFTA_SET_ELEM_KEY {
					continue
				}
				all = false
				for v := range nested(a.value) {
					do(v.value)
				}
			}
			if all {
				do(nil)
			}
		}
	})
}

type attribute struct {
	kind  uint16
	value []byte
}

// nested goes through attributes that the kernel has made.
func nested(b []byte) iter.Seq[attribute] {
	const header = unix.SizeofNlAttr
	return func(yield func(attribute) bool) {
		for len(b) >= header {
			n := int(nativeEndian.Uint16(b))
			if n < header || n > len(b) || !yield(attribute{nativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), b[header:n]}) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
