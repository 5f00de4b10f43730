package guard

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// encoded is a chain as the kernel takes it.
type encoded struct {
	written
	hook  *nft.Hook
	rules [][][]byte
}

// digest is the SHA-256 of something that is only compared, and long.
type digest [sha256.Size]byte

// written is what is remembered of a chain that was written. Its hook does not change.
type written struct {
	name string
	sum  digest // of its rules; zero: not known
}

// sumOf returns the digest of the rules of a chain.
func sumOf(rules [][][]byte) digest {
	var b []byte
	for _, r := range rules {
		b = binary.AppendUvarint(b, uint64(len(r)))
		for _, x := range r {
			b = append(binary.AppendUvarint(b, uint64(len(x))), x...)
		}
	}
	return sha256.Sum256(b)
}

// remember returns what to remember of chains.
func remember(chains []encoded) (list []written) {
	for _, c := range chains {
		list = append(list, c.written)
	}
	return list
}

// encode encodes the rules of some facts.
func (c *Config) encode(f facts) (chains []encoded, err error) {
	for _, chain := range (builder{c, f}).build() {
		e := encoded{hook: chain.hook}
		for _, r := range chain.rules {
			b, err := r.encode()
			if err != nil {
				return nil, err
			}
			e.rules = append(e.rules, b)
		}
		e.written = written{chain.name, sumOf(e.rules)}
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
func named(names []string) (list []written) {
	for _, n := range names {
		list = append(list, written{name: n})
	}
	return list
}

// changeChains returns the steps that write the chains of which a rule is not what it was, and remove those that are not wanted.
func changeChains(table string, was []written, want []encoded) (steps []nft.Step) {
	for _, c := range was {
		if !slices.ContainsFunc(want, func(w encoded) bool { return w.name == c.name }) {
			steps = append(steps, nft.DeleteRule(nft.Inet, table, c.name, 0), nft.DeleteChain(nft.Inet, table, c.name))
		}
	}
	var changed []encoded
	for _, c := range want {
		if slices.Contains(was, c.written) {
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
	text       digest // of flags, chains, rules and the names of sets
	open       bool   // somebody has changed it so that it lets packets pass: the table has a flag, or a set has a key for all keys
	chains     []string
	sets       keys
	seed       uint32 // of the hash of origins; 0: no rule has one
	port, shut uint16 // for which the rules are, and that of the chains that shut it; 0: none are
	generation uint32 // how often nftables had changed before it was read
}

// covers reports whether the rules are for that port.
func (c *content) covers(port uint16) bool { return cmp.Or(c.port, c.shut) == port }

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
		c.exists, c.open = true, flags != 0
		if err := c.read(r, name, flags, elements); err != nil {
			return err
		}
		if now, err := r.Generation(); err != nil || now != c.generation {
			return errors.Join(err, nft.ErrChanging)
		}
		return nil
	})
	return c, err
}

func (c *content) read(r nft.Reader, name string, flags uint32, elements bool) error {
	chains, err := r.ChainsOf(func(table string) bool { return table == name })
	if err != nil {
		return err
	}
	h := sha256.New()
	fmt.Fprintf(h, "flags %d\n", flags)
	for _, chain := range chains {
		io.WriteString(h, chain.Text())
		c.chains = append(c.chains, chain.Name)
	}
	rules, err := r.Rules(name, "")
	if err != nil {
		return err
	}
	for _, rule := range rules {
		io.WriteString(h, rule.Chain+" "+rule.Text())
		c.seed = cmp.Or(c.seed, seedOf(rule))
		if port := portOf(rule); isShut(rule.Chain) {
			c.shut = cmp.Or(c.shut, port)
		} else {
			c.port = cmp.Or(c.port, port)
		}
	}
	names, err := r.Sets(name)
	if err != nil {
		return err
	}
	slices.Sort(names)
	io.WriteString(h, strings.Join(names, " "))
	c.text = digest(h.Sum(nil))
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
