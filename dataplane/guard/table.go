package guard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// encoded is a chain as the kernel takes it.
type encoded struct {
	name  string
	hook  *nft.Hook
	rules [][][]byte
}

// same reports whether both have the same rules. The hook of a chain does not change.
func (e encoded) same(o encoded) bool {
	sameRule := func(a, b [][]byte) bool { return slices.EqualFunc(a, b, slices.Equal) }
	return e.name == o.name && slices.EqualFunc(e.rules, o.rules, sameRule)
}

// encode encodes the rules of some facts.
func (c *Config) encode(f facts) (chains []encoded, err error) {
	for _, chain := range (builder{c, f}).build() {
		e := encoded{name: chain.name, hook: chain.hook}
		for _, r := range chain.rules {
			b, err := r.encode()
			if err != nil {
				return nil, err
			}
			e.rules = append(e.rules, b)
		}
		chains = append(chains, e)
	}
	return chains, nil
}

// reasons are those that have a counter.
var reasons = []dataplane.Drop{
	dataplane.DropUnknownVTEP, dataplane.DropBadSource, dataplane.DropBadDestination, dataplane.DropBadHeader,
	dataplane.DropBadVNI, dataplane.DropFragment, dataplane.DropPlainSource, dataplane.DropEgress, dataplane.DropFlood,
	dataplane.DropNarrowPath,
}

// newTable returns the steps that make an empty table, whatever there is now.
func newTable(name string) []nft.Step {
	steps := []nft.Step{nft.NewTable(nft.Inet, name), nft.DeleteTable(nft.Inet, name), nft.NewTable(nft.Inet, name)}
	for _, why := range reasons {
		steps = append(steps, nft.NewCounter(nft.Inet, name, why.String()))
	}
	return steps
}

// named are chains of which no more is known than the names.
func named(names []string) (list []encoded) {
	unknown := [][][]byte{nil} // a rule such as no chain has
	for _, n := range names {
		list = append(list, encoded{name: n, rules: unknown})
	}
	return list
}

// changeChains returns the steps that write the chains of which a rule is not what it was, and remove those that are not wanted.
func changeChains(table string, was, want []encoded) (steps []nft.Step) {
	for _, c := range was {
		if !slices.ContainsFunc(want, func(w encoded) bool { return w.name == c.name }) {
			steps = append(steps, nft.DeleteRule(nft.Inet, table, c.name, 0), nft.DeleteChain(nft.Inet, table, c.name))
		}
	}
	var changed []encoded
	for _, c := range want {
		if slices.ContainsFunc(was, c.same) {
			continue
		}
		changed = append(changed, c)
		steps = append(steps, nft.NewChain(nft.Inet, table, c.name, c.hook), nft.DeleteRule(nft.Inet, table, c.name, 0))
	}
	for _, c := range changed {
		for _, r := range c.rules {
			steps = append(steps, nft.NewRule(nft.Inet, table, c.name, r, ""))
		}
	}
	return steps
}

// content is what the kernel has.
type content struct {
	exists     bool
	text       string // of flags, chains, rules and the names of sets
	open       bool   // somebody has changed it so that it lets packets pass: the table has a flag, or a set has a key for all keys
	chains     []string
	sets       keys
	seed       uint32 // of the hash of origins; 0: no rule has one
	generation uint32 // how often nftables had changed before it was read
}

// read reads the table. The elements of sets that no guard makes are left out.
func read(name string, elements bool) (c content, err error) {
	err = nft.Read(nft.Inet, func(r nft.Reader) (err error) {
		c = content{sets: keys{}}
		if c.generation, err = r.Generation(); err != nil {
			return err
		}
		n, flags, err := r.Table(name)
		if err != nil || n < 0 {
			return err
		}
		c.exists, c.open, c.text = true, flags != 0, fmt.Sprintf("flags %d\n", flags)
		if err := c.read(r, name, elements); err != nil {
			return err
		}
		if now, err := r.Generation(); err != nil || now != c.generation {
			return errors.Join(err, nft.ErrChanging)
		}
		return nil
	})
	return c, err
}

func (c *content) read(r nft.Reader, name string, elements bool) error {
	chains, err := r.Chains()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, chain := range chains {
		if chain.Table == name {
			b.WriteString(chain.Text())
			c.chains = append(c.chains, chain.Name)
		}
	}
	rules, err := r.Rules(name, "")
	if err != nil {
		return err
	}
	for _, rule := range rules {
		b.WriteString(rule.Chain + " " + rule.Text())
		c.seed = cmp.Or(c.seed, seedOf(rule))
	}
	names, err := r.Sets(name)
	if err != nil {
		return err
	}
	slices.Sort(names)
	b.WriteString(strings.Join(names, " "))
	c.text += b.String()
	for _, set := range names {
		kind := setOf(set)
		if !elements || kind.KeyLen() == 0 {
			continue
		}
		list, err := r.Elements(name, set, kind.KeyLen())
		if err != nil {
			return err
		}
		c.sets[set] = make(map[string]bool, len(list))
		for _, key := range list {
			c.sets[set][key] = true
			c.open = c.open || key == ""
		}
	}
	return nil
}
