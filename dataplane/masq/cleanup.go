package masq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// Cleanup removes what was written for the networks of those VNIs, or for all networks
// if no VNI is given, in either mode, from the network namespace of the calling thread. It
// returns what it removed, in words, and removes as much as possible even if it
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

// takes reports whether a table or chain is to be removed.
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
		var steps []nft.Step
		err = nft.Read(c.family, func(r nft.Reader) (err error) {
			steps, removed, err = c.nftSteps(r)
			return err
		})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, nil // a kernel without nftables
		}
		if err == nil {
			err = nft.Commit(steps)
		}
		if !errors.Is(err, unix.ENOENT) { // somebody else has removed one of them
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return removed, nil
}

func (c cleaner) nftSteps(r nft.Reader) (steps []nft.Step, removed []string, err error) {
	tables, err := r.Tables()
	if err != nil {
		return nil, nil, err
	}
	for _, table := range tables {
		if isOurTable(table) && c.takes(table) {
			steps = append(steps, nft.DeleteTable(c.family, table))
			removed = append(removed, fmt.Sprintf("table %s %s", c.family, table))
		}
	}
	chains, err := r.Chains()
	if err != nil {
		return nil, nil, err
	}
	for _, chain := range chains {
		if chain.Table != baseOf(chain.Name).Table || !isOurChain(chain.Name) || !c.takes(chain.Name) {
			continue
		}
		rules, err := r.Rules(chain.Table, "")
		if err != nil {
			return nil, nil, err
		}
		steps = append(steps, deleteRules(c.family, chain.Table, jumps(nft.Chain{Rules: rules}, chain.Name))...)
		steps = append(steps, nft.DeleteRule(c.family, chain.Table, chain.Name, 0), nft.DeleteChain(c.family, chain.Table, chain.Name))
		removed = append(removed, fmt.Sprintf("chain %s %s %s", c.family, chain.Table, chain.Name))
	}
	return steps, removed, nil
}

func (c cleaner) legacy(ctx context.Context) (removed []string, err error) {
	have, err := readLegacy(c.family)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil // nor could this user have written any
	}
	if err != nil || !have.hasOurs() {
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
