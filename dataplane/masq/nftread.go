package masq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftRule is a rule as the kernel tells it.
type nftRule struct {
	chain  string
	handle uint64
	exprs  []nftExpr
}

// nftExpr is one expression, its data not decoded.
type nftExpr struct {
	name string
	data []byte
}

// text is the rule without what the kernel counts in it.
func (r nftRule) text() string {
	var b strings.Builder
	for _, x := range r.exprs {
		if x.name != "counter" {
			fmt.Fprintf(&b, "%s %x\n", x.name, x.data)
		}
	}
	return b.String()
}

// isPlainJump reports whether a rule jumps whatever the packet.
func (r nftRule) isPlainJump() bool {
	for _, x := range r.exprs {
		if x.name != "counter" && x.name != "immediate" {
			return false
		}
	}
	return true
}

// nftChain is a chain as the kernel tells it; hook says where a base chain is and
// what its policy is.
type nftChain struct {
	table, name, hook string
	exists            bool
	drops             bool // it is in the forward hook and drops by policy
	rules             []nftRule
}

func (c nftChain) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chain %s %s %v %x\n", c.table, c.name, c.exists, c.hook)
	for _, r := range c.rules {
		b.WriteString("rule\n" + r.text())
	}
	return b.String()
}

// reader reads rules of one family.
type reader struct {
	*netlink.Conn
	family family
}

// chains lists the chains of all tables, without rules.
func (r reader) chains() (list []nftChain, err error) {
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETCHAIN, r.family, netlink.Dump, nil))
	if err != nil {
		return nil, fmt.Errorf("list chains of family %s: %w", r.family, err)
	}
	for _, b := range bodies {
		c, err := parseChain(b)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// chain reads one chain with its rules.
func (r reader) chain(table, name string) (nftChain, error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, name)
	})
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETCHAIN, r.family, 0, attrs))
	if err != nil {
		return nftChain{}, fmt.Errorf("read chain %s %s %s: %w", r.family, table, name, err)
	}
	if len(bodies) == 0 {
		return nftChain{table: table, name: name}, nil
	}
	c, err := parseChain(bodies[0])
	if err != nil {
		return nftChain{}, err
	}
	c.rules, err = r.rules(table, name)
	return c, err
}

// rules reads the rules of a chain, of all chains of the table for chain "".
func (r reader) rules(table, chain string) (list []nftRule, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		if chain != "" {
			e.String(unix.NFTA_RULE_CHAIN, chain)
		}
	})
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETRULE, r.family, netlink.Dump, attrs))
	if err != nil {
		return nil, fmt.Errorf("read rules of %s %s %s: %w", r.family, table, chain, err)
	}
	for _, b := range bodies {
		rule, err := parseRule(b)
		if err != nil {
			return nil, err
		}
		list = append(list, rule)
	}
	return list, nil
}

// chainCount returns how many chains a table has, -1 where there is no such table.
func (r reader) chainCount(table string) (int, error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETTABLE, r.family, 0, attrs))
	if err != nil {
		return 0, fmt.Errorf("read table %s %s: %w", r.family, table, err)
	}
	if len(bodies) == 0 {
		return -1, nil
	}
	n := 0
	err = decode(bodies[0], func(d *netlink.AttributeDecoder) {
		if d.Type() == unix.NFTA_TABLE_USE {
			n = int(d.Uint32())
		}
	})
	return n, err
}

// generation returns the number of changes of nftables so far, which each batch counts up.
func (r reader) generation() (n uint32, err error) {
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETGEN, r.family, 0, nil))
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, b := range bodies {
		err = errors.Join(err, decode(b, func(d *netlink.AttributeDecoder) {
			if d.Type() == unix.NFTA_GEN_ID {
				n = d.Uint32()
			}
		}))
	}
	return n, err
}

func decode(b []byte, attribute func(d *netlink.AttributeDecoder)) error {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return fmt.Errorf("decode rules: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		attribute(d)
	}
	if err := d.Err(); err != nil {
		return fmt.Errorf("decode rules: %w", err)
	}
	return nil
}

func parseChain(b []byte) (nftChain, error) {
	c := nftChain{exists: true}
	forward, policy := false, uint32(1) // NF_ACCEPT
	err := decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = d.String()
		case unix.NFTA_CHAIN_NAME:
			c.name = d.String()
		case unix.NFTA_CHAIN_POLICY:
			policy = d.Uint32()
			c.hook += string(d.Bytes())
		case unix.NFTA_CHAIN_TYPE:
			c.hook += string(d.Bytes())
		case unix.NFTA_CHAIN_HOOK:
			c.hook += string(d.Bytes())
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					if d.Type() == unix.NFTA_HOOK_HOOKNUM {
						forward = d.Uint32() == unix.NF_INET_FORWARD
					}
				}
				return nil
			})
		}
	})
	c.drops = forward && policy == 0 // NF_DROP
	return c, err
}

func parseRule(b []byte) (r nftRule, err error) {
	var nested error
	err = decode(b, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			nested = decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
				x := nftExpr{}
				err := decode(d.Bytes(), func(d *netlink.AttributeDecoder) {
					switch d.Type() {
					case unix.NFTA_EXPR_NAME:
						x.name = d.String()
					case unix.NFTA_EXPR_DATA:
						x.data = d.Bytes()
					}
				})
				nested = errors.Join(nested, err)
				r.exprs = append(r.exprs, x)
			})
		}
	})
	return r, errors.Join(err, nested)
}
