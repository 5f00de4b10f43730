package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The attributes of the expression fwd (linux/netfilter/nf_tables.h).
const (
	fwdDevice  = 1
	fwdAddress = 2
	fwdFamily  = 3
)

const (
	flagMap       = 0x8 // NFT_SET_MAP
	interfaceType = 20  // of values, as libnftables numbers types: iface_index
)

// Hops are the two maps by which packets of a netdev table are given to other interfaces: from the destination to the
// index of the interface, and to the address of the next hop there.
type Hops struct {
	Table  string
	Family Family // of the addresses: IPv4 or IPv6
}

// Hop is where packets to one destination go.
type Hop struct {
	Link    int        // index of the interface
	Gateway netip.Addr // the next hop; the destination itself if that is on the link
}

const linksMap, gatewaysMap = "links", "gateways"

// NewHops adds the two maps, which are empty.
func NewHops(h Hops) []Step {
	key := h.key()
	return []Step{newMap(h.Table, linksMap, 1, key, interfaceType, 4), newMap(h.Table, gatewaysMap, 2, key, uint32(key), key.size())}
}

func (h Hops) key() KeyType {
	if h.Family == IPv6 {
		return KeyIPv6
	}
	return KeyIPv4
}

func newMap(table, name string, id uint32, key KeyType, valueType uint32, valueLen int) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, table)
		e.String(unix.NFTA_SET_NAME, name)
		e.Uint32(unix.NFTA_SET_FLAGS, flagMap)
		e.Uint32(unix.NFTA_SET_KEY_TYPE, uint32(key))
		e.Uint32(unix.NFTA_SET_KEY_LEN, uint32(key.size()))
		e.Uint32(unix.NFTA_SET_DATA_TYPE, valueType)
		e.Uint32(unix.NFTA_SET_DATA_LEN, uint32(valueLen))
		e.Uint32(unix.NFTA_SET_ID, id)
	})
	return Step{message(unix.NFT_MSG_NEWSET, Netdev, netlink.Create, attrs), fmt.Sprintf("add map netdev %s %s", table, name)}
}

// AddHop adds the hop of a destination, which must have none.
func AddHop(h Hops, to netip.Addr, hop Hop) []Step {
	link := binary.NativeEndian.AppendUint32(nil, uint32(hop.Link))
	return []Step{mapStep(h, linksMap, to, link), mapStep(h, gatewaysMap, to, hop.Gateway.AsSlice())}
}

// DeleteHop removes the hop of a destination, which must have one.
func DeleteHop(h Hops, to netip.Addr) []Step {
	return []Step{mapStep(h, linksMap, to, nil), mapStep(h, gatewaysMap, to, nil)}
}

// mapStep adds a key with a value, or deletes it if there is no value.
func mapStep(h Hops, name string, key netip.Addr, value []byte) Step {
	kind, flags, verb := unix.NFT_MSG_NEWSETELEM, netlink.Create, "add %s to map netdev %s %s"
	if value == nil {
		kind, flags, verb = unix.NFT_MSG_DELSETELEM, 0, "delete %s of map netdev %s %s"
	}
	data := func(b []byte) func(*netlink.AttributeEncoder) error {
		return func(e *netlink.AttributeEncoder) error {
			e.Bytes(unix.NFTA_DATA_VALUE, b)
			return nil
		}
	}
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, h.Table)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, name)
		e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
				e.Nested(unix.NFTA_SET_ELEM_KEY, data(key.AsSlice()))
				if value != nil {
					e.Nested(unix.NFTA_SET_ELEM_DATA, data(value))
				}
				return nil
			})
			return nil
		})
	})
	return Step{message(kind, Netdev, flags, attrs), fmt.Sprintf(verb, key, h.Table, name)}
}

// Forward returns the encoded expressions of a rule that gives a packet to the next hop of its destination, with
// that mark if it is not 0. The kernel finds the next hop's link-layer address, and counts the TTL down. What has no hop
// goes on to the next rule. It needs nft_fwd_netdev (Linux 4.16).
func Forward(h Hops, mark uint32) ([][]byte, error) {
	load := func(set string, to uint32) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: h.Family.Destination(), Len: uint32(h.key().size())},
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, DestRegister: to, IsDestRegSet: true, SetName: set},
		}
	}
	list := slices.Concat(load(linksMap, unix.NFT_REG_2), load(gatewaysMap, unix.NFT_REG_3))
	if mark != 0 {
		list = append(list, &expr.Immediate{Register: unix.NFT_REG_1, Data: native(mark)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
	}
	encoded, err := Encode(Netdev, list...)
	if err != nil {
		return nil, err
	}
	return append(encoded, attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, "fwd")
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			e.Uint32(fwdDevice, unix.NFT_REG_2)
			e.Uint32(fwdAddress, unix.NFT_REG_3)
			e.Uint32(fwdFamily, uint32(h.Family))
			return nil
		})
	})), nil
}
