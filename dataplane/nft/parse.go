package nft

import (
	"errors"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func parseChain(b []byte) (Chain, error) {
	c := Chain{Exists: true}
	var base Hook
	err := decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = d.String()
		case unix.NFTA_CHAIN_NAME:
			c.Name = d.String()
		case unix.NFTA_CHAIN_USE:
			c.Uses = int(d.Uint32())
		case unix.NFTA_CHAIN_POLICY:
			base.Drop = d.Uint32() == verdictDrop
			c.Hook += string(d.Bytes())
		case unix.NFTA_CHAIN_TYPE:
			base.Type = d.String()
			c.Hook += string(d.Bytes())
		case unix.NFTA_CHAIN_HOOK:
			c.Hook += string(d.Bytes())
			d.Nested(func(d *netlink.AttributeDecoder) error { return parseHook(d, &base, &c) })
		}
	})
	if c.Hook != "" {
		c.Base = &base
	}
	return c, err
}

// Of struct nft_hook, which x/sys does not have (linux/netfilter/nf_tables.h).
const (
	hookDevices = 4 // NFTA_HOOK_DEVS
	deviceName  = 1 // NFTA_DEVICE_NAME
)

// parseHook reads where a base chain is.
func parseHook(d *netlink.AttributeDecoder, h *Hook, c *Chain) error {
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			h.Number = d.Uint32()
		case unix.NFTA_HOOK_PRIORITY:
			h.Priority = int32(d.Uint32())
		case unix.NFTA_HOOK_DEV:
			c.Devices = append(c.Devices, d.String())
		case hookDevices:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					if d.Type() == deviceName {
						c.Devices = append(c.Devices, d.String())
					}
				}
				return nil
			})
		}
	}
	return nil
}

func parseRule(b []byte) (r Rule, err error) {
	var nested error
	err = decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.Chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.Handle = d.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.Comment = parseComment(d.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			nested = decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
				x, err := ParseExpr(d.Bytes())
				nested = errors.Join(nested, err)
				r.Exprs = append(r.Exprs, x)
			})
		}
	})
	return r, errors.Join(err, nested)
}

// The user data of a rule, which the kernel keeps without a look at it, are a list of items: type
// and length in a byte each, then the value. The nft command and iptables-nft agree that a comment
// has type 0 and ends with a zero byte (libnftnl/udata.h).
const (
	commentType = 0
	maxComment  = 254 // bytes, without the zero byte
)

func encodeComment(text string) []byte {
	text = text[:min(len(text), maxComment)]
	return append([]byte{commentType, byte(len(text) + 1)}, text+"\x00"...)
}

// parseComment returns the comment among user data, "" without one.
func parseComment(b []byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		value := b[2 : 2+int(b[1])]
		if b[0] == commentType {
			return strings.TrimRight(string(value), "\x00")
		}
		b = b[2+len(value):]
	}
	return ""
}

// sizeofNfgenmsg is the size of struct nfgenmsg of linux/netfilter/nfnetlink.h: family, version,
// resource.
const sizeofNfgenmsg = 4

// ParseExpr parses an encoded expression.
func ParseExpr(b []byte) (x Expr, err error) {
	err = decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			x.Name = d.String()
		case unix.NFTA_EXPR_DATA:
			x.Data = d.Bytes()
		}
	})
	return x, err
}

// NoticedTable returns the table that a notification of the group NFNLGRP_NFTABLES is about. ok is false if it is about none, as that of a new generation,
// which the kernel sends with each change. body is without the netlink header.
func NoticedTable(h unix.NlMsghdr, body []byte) (f Family, table string, ok bool) {
	if h.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || h.Type&kindOfMessage == unix.NFT_MSG_NEWGEN || len(body) < sizeofNfgenmsg {
		return 0, "", false
	}
	table = tableOf(body[sizeofNfgenmsg:])
	return Family(body[0]), table, table != ""
}

const kindOfMessage = 0xff // of nftables, in the type of a message

// ChangedTable is [NoticedTable] for changes of tables, chains and rules.
func ChangedTable(h unix.NlMsghdr, body []byte) (f Family, table string, ok bool) {
	switch h.Type & kindOfMessage {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return NoticedTable(h, body)
	}
	return 0, "", false
}

// ChangedContent is [ChangedTable] for changes of sets, their elements and counters too.
func ChangedContent(h unix.NlMsghdr, body []byte) (f Family, table string, ok bool) {
	switch h.Type & kindOfMessage {
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ:
		return NoticedTable(h, body)
	}
	return ChangedTable(h, body)
}

// tableOf returns the table of what the attributes describe. The walk is by hand, as in encodeKeys: each of many guards gets the notices of all.
func tableOf(attrs []byte) string {
	for a := range nested(attrs) {
		if a.kind == unix.NFTA_TABLE_NAME { // and NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE, NFTA_OBJ_TABLE
			return strings.TrimRight(string(a.value), "\x00")
		}
	}
	return ""
}
