package masq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Cleanup removes what was written for the networks of those VNIs, for all networks
// without any, in either mode, from the network namespace of the calling thread. It
// returns what it removed, in words, and removes all it can even where it
// returns an error. Rules of others stay as they are, and so do the tables and base
// chains that iptables made. Only rules of iptables-legacy need a binary.
func Cleanup(ctx context.Context, vnis ...uint32) (removed []string, err error) {
	var errs []error
	for _, f := range []family{ipv4, ipv6} {
		c := cleaner{family: f, vnis: vnis}
		for _, clean := range []func(context.Context) ([]string, error){c.nft, c.legacy} {
			words, err := clean(ctx)
			removed, errs = append(removed, words...), append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("clean up traffic rules: %w", err)
	}
	return removed, nil
}

// cleaner removes what is ours in one family.
type cleaner struct {
	family family
	vnis   []uint32
}

// takes reports whether a table or chain is to go.
func (c cleaner) takes(name string) bool {
	if len(c.vnis) == 0 {
		return isOurTable(name) || isOurChain(name)
	}
	return slices.ContainsFunc(c.vnis, func(vni uint32) bool {
		n := namesOf(vni)
		return name == n.table || name == n.masq || name == n.fwd
	})
}

func (c cleaner) nft(context.Context) (removed []string, err error) {
	for range attempts {
		var steps []step
		err = reading(c.family, func(r reader) (err error) {
			steps, removed, err = c.nftSteps(r)
			return err
		})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, nil // a kernel without nftables
		}
		if err == nil {
			err = commit(steps)
		}
		if !errors.Is(err, unix.ENOENT) { // somebody else removed something first
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return removed, nil
}

func (c cleaner) nftSteps(r reader) (steps []step, removed []string, err error) {
	tables, err := r.tables()
	if err != nil {
		return nil, nil, err
	}
	for _, table := range tables {
		if isOurTable(table) && c.takes(table) {
			steps = append(steps, deleteTable(c.family, table))
			removed = append(removed, fmt.Sprintf("table %s %s", c.family, table))
		}
	}
	chains, err := r.chains()
	if err != nil {
		return nil, nil, err
	}
	for _, chain := range chains {
		if chain.table != baseOf(chain.name).table || !isOurChain(chain.name) || !c.takes(chain.name) {
			continue
		}
		rules, err := r.rules(chain.table, "")
		if err != nil {
			return nil, nil, err
		}
		steps = append(steps, r.deleteRules(chain.table, jumps(c.family, nftChain{rules: rules}, chain.name))...)
		steps = append(steps, deleteRule(c.family, chain.table, chain.name, 0), deleteChain(c.family, chain.table, chain.name))
		removed = append(removed, fmt.Sprintf("chain %s %s %s", c.family, chain.table, chain.name))
	}
	return steps, removed, nil
}

// tables lists all tables.
func (r reader) tables() (names []string, err error) {
	bodies, err := query(r.Conn, message(unix.NFT_MSG_GETTABLE, r.family, netlink.Dump, nil))
	if err != nil {
		return nil, fmt.Errorf("list tables of family %s: %w", r.family, err)
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

func (c cleaner) legacy(ctx context.Context) (removed []string, err error) {
	have, err := readLegacy(c.family)
	if err != nil || !strings.Contains(have.text, chainPrefix) {
		return nil, err
	}
	t, err := findLegacy(ctx, c.family)
	if err != nil {
		return nil, fmt.Errorf("remove chains %s* of the legacy iptables tables: %w: install iptables-legacy", chainPrefix, err)
	}
	saved, err := t.save(ctx)
	if err != nil {
		return nil, err
	}
	text := ""
	for _, table := range []string{natTable, filterTable} {
		var lines []string
		for _, chain := range saved[table].chains {
			if isOurChain(chain) && c.takes(chain) {
				lines = append(lines, saved[table].remove(chain)...)
				removed = append(removed, fmt.Sprintf("legacy chain %s %s %s", c.family, table, chain))
			}
		}
		text += restoreText(table, lines)
	}
	if text == "" {
		return nil, nil
	}
	if err := t.restore(ctx, text); err != nil {
		return nil, err
	}
	return removed, nil
}
