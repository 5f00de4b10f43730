package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readTries bounds how often a reading is repeated that others' changes disturb.
const readTries = 10

// Read gives read a Reader for one family, and calls it again if others write meanwhile: while
// it returns [ErrChanging], up to ten times.
func Read(f Family, read func(Reader) error) (err error) {
	for range readTries {
		if err = readOnce(f, read); !errors.Is(err, ErrChanging) {
			return err
		}
	}
	return err
}

func readOnce(f Family, read func(Reader) error) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return read(Reader{c, f})
}

// Reader reads what there is of one family. It is valid during the call of [Read].
type Reader struct {
	conn   *netlink.Conn
	Family Family
}

// Tables lists the names of all tables.
func (r Reader) Tables() (names []string, err error) {
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETTABLE, r.Family, netlink.Dump, nil))
	if err != nil {
		return nil, fmt.Errorf("list tables of family %s: %w", r.Family, err)
	}
	for _, b := range bodies {
		if err := decode(b, func(d *netlink.AttributeDecoder) {
			if d.Type() == unix.NFTA_TABLE_NAME {
				names = append(names, d.String())
			}
		}); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Chains lists the chains of all tables, without rules.
func (r Reader) Chains() ([]Chain, error) {
	return r.ChainsOf(func(string) bool { return true })
}

// ChainsOf is Chains for tables of these names. The kernel tells of all, but to decode a chain takes longer than to read it.
func (r Reader) ChainsOf(wanted func(table string) bool) (list []Chain, err error) {
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETCHAIN, r.Family, netlink.Dump, nil))
	if err != nil {
		return nil, fmt.Errorf("list chains of family %s: %w", r.Family, err)
	}
	for _, b := range bodies {
		if !wanted(tableOf(b)) {
			continue
		}
		c, err := parseChain(b)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// Chain reads one chain with its rules. It is not an error if there is no such chain: Exists
// is false then.
func (r Reader) Chain(table, name string) (Chain, error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, name)
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETCHAIN, r.Family, 0, attrs))
	if err != nil {
		return Chain{}, fmt.Errorf("read chain %s %s %s: %w", r.Family, table, name, err)
	}
	if len(bodies) == 0 {
		return Chain{Table: table, Name: name}, nil
	}
	c, err := parseChain(bodies[0])
	if err != nil {
		return Chain{}, err
	}
	c.Rules, err = r.Rules(table, name)
	return c, err
}

// Rules reads the rules of a chain; chain "" means all chains of the table.
func (r Reader) Rules(table, chain string) (list []Rule, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		if chain != "" {
			e.String(unix.NFTA_RULE_CHAIN, chain)
		}
	})
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETRULE, r.Family, netlink.Dump, attrs))
	if err != nil {
		return nil, fmt.Errorf("read rules of %s %s %s: %w", r.Family, table, chain, err)
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

// Table returns how many chains a table has, -1 if there is no such table, and its flags. While a table has the flag
// unix.NFT_TABLE_F_DORMANT, no packet meets its chains.
func (r Reader) Table(table string) (chains int, flags uint32, err error) {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETTABLE, r.Family, 0, attrs))
	if err != nil {
		return 0, 0, fmt.Errorf("read table %s %s: %w", r.Family, table, err)
	}
	if len(bodies) == 0 {
		return -1, 0, nil
	}
	err = decode(bodies[0], func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case unix.NFTA_TABLE_USE:
			chains = int(d.Uint32())
		case unix.NFTA_TABLE_FLAGS:
			flags = d.Uint32()
		}
	})
	return chains, flags, err
}

// Generation is [Reader.Generation].
func Generation(f Family) (n uint32, err error) {
	err = Read(f, func(r Reader) (err error) { n, err = r.Generation(); return err })
	return n, err
}

// Generation returns the number of changes of nftables so far. Each batch adds one.
func (r Reader) Generation() (n uint32, err error) {
	bodies, err := query(r.conn, message(unix.NFT_MSG_GETGEN, r.Family, 0, nil))
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
