package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Element is what a set or a map has for a key.
type Element struct {
	Found   bool
	Data    []byte   // of a map; nil if it has verdicts
	Verdict *Verdict // of a verdict map
}

// Verdict is what becomes of a packet.
type Verdict struct {
	Code  int32  // unix.NFT_JUMP and so on, or 0 for drop and 1 for accept
	Chain string // of a jump or goto
}

// Lookup asks the kernel what a set or map has for a key, as it does itself for a packet: the element may be an interval
// that holds the key. The key is as long as those of the set, or longer. However large the set is, one element is read.
func (r Reader) Lookup(table, set string, key []byte) (Element, error) {
	n, err := r.keyLen(table, set)
	if err != nil {
		return Element{}, err
	}
	if n > len(key) {
		return Element{}, fmt.Errorf("look up in set %s %s %s: its keys have %d bytes, not %d", r.Family, table, set, n, len(key))
	}
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
		e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
				e.Nested(unix.NFTA_SET_ELEM_KEY, func(e *netlink.AttributeEncoder) error {
					e.Bytes(unix.NFTA_DATA_VALUE, key[:n])
					return nil
				})
				return nil
			})
			return nil
		})
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETSETELEM, r.Family, 0, attrs))
	if err != nil {
		return Element{}, fmt.Errorf("look up in set %s %s %s: %w", r.Family, table, set, err)
	}
	if len(bodies) == 0 {
		return Element{}, nil
	}
	return parseElement(bodies[0])
}

// keyLen returns how long the keys of a set are, in bytes.
func (r Reader) keyLen(table, set string) (n int, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, table)
		e.String(unix.NFTA_SET_NAME, set)
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETSET, r.Family, 0, attrs))
	if err != nil {
		return 0, fmt.Errorf("read set %s %s %s: %w", r.Family, table, set, err)
	}
	if len(bodies) == 0 {
		return 0, fmt.Errorf("read set %s %s %s: %w", r.Family, table, set, ErrChanging)
	}
	err = decode(bodies[0], func(d *netlink.AttributeDecoder) {
		if d.Type() == unix.NFTA_SET_KEY_LEN {
			n = int(d.Uint32())
		}
	})
	return n, err
}

// parseElement reads the first element of an answer. One that ends an interval means that the key is behind it.
func parseElement(b []byte) (Element, error) {
	e := Element{}
	var nested error
	err := decode(b, func(d *netlink.AttributeDecoder) {
		if d.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS && !e.Found {
			nested = decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
				if !e.Found {
					nested = errors.Join(nested, e.parse(d.Bytes()))
				}
			})
		}
	})
	return e, errors.Join(err, nested)
}

func (e *Element) parse(b []byte) error {
	e.Found = true
	var nested error
	err := decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_SET_ELEM_FLAGS:
			e.Found = d.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END == 0
		case unix.NFTA_SET_ELEM_DATA:
			e.Data, e.Verdict, nested = ParseData(d.Bytes())
		}
	})
	return errors.Join(err, nested)
}

// ParseData parses an attribute that holds a value or a verdict.
func ParseData(b []byte) (value []byte, v *Verdict, err error) {
	var nested error
	err = decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_DATA_VALUE:
			value = d.Bytes()
		case unix.NFTA_DATA_VERDICT:
			v = new(Verdict)
			nested = decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
				switch d.Type() {
				case unix.NFTA_VERDICT_CODE:
					v.Code = int32(d.Uint32())
				case unix.NFTA_VERDICT_CHAIN:
					v.Chain = d.String()
				}
			})
		}
	})
	return value, v, errors.Join(err, nested)
}

// ParseImmediate parses an expression of that name: its value or verdict. (expr.Verdict of google/nftables v0.3.0 panics if there is less than
// it expects.)
func ParseImmediate(b []byte) (value []byte, v *Verdict, err error) {
	var nested error
	err = decode(b, func(d *netlink.AttributeDecoder) {
		if d.Type() == unix.NFTA_IMMEDIATE_DATA {
			value, v, nested = ParseData(d.Bytes())
		}
	})
	return value, v, errors.Join(err, nested)
}
