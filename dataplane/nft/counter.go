package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var nativeEndian = binary.NativeEndian

// NewCounter adds a counter that rules share by its name. There must be none of that name.
func NewCounter(f Family, table, name string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_OBJ_TABLE, table)
		e.String(unix.NFTA_OBJ_NAME, name)
		e.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
		e.Nested(unix.NFTA_OBJ_DATA, func(*netlink.AttributeEncoder) error { return nil })
	})
	return Step{message(unix.NFT_MSG_NEWOBJ, f, netlink.Create|netlink.Excl, attrs), fmt.Sprintf("add counter %s %s %s", f, table, name)}
}

// Count counts a packet in a counter of [NewCounter].
func Count(name string) expr.Any { return &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name} }

// Counters returns the packets that the counters of a table have counted, by name. It is nil if there is no such table.
func (r Reader) Counters(table string) (map[string]uint64, error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_OBJ_TABLE, table)
		e.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETOBJ, r.Family, netlink.Dump, attrs))
	if err != nil {
		return nil, fmt.Errorf("read the counters of table %s %s: %w", r.Family, table, err)
	}
	var found map[string]uint64
	for _, b := range bodies {
		name, packets, err := parseCounter(b)
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = map[string]uint64{}
		}
		found[name] = packets
	}
	return found, nil
}

func parseCounter(b []byte) (name string, packets uint64, err error) {
	var nested error
	err = decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_OBJ_NAME:
			name = d.String()
		case unix.NFTA_OBJ_DATA:
			nested = decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
				if d.Type() == unix.NFTA_COUNTER_PACKETS {
					packets = d.Uint64()
				}
			})
		}
	})
	return name, packets, errors.Join(err, nested)
}
