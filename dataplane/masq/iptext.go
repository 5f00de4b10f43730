package masq

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// specification writes a rule in the words of iptables.
func specification(r rule) string {
	var words []string
	if r.tunnel != 0 {
		words = append(words, fmt.Sprintf("-p udp -m udp --dport %d -m addrtype --src-type LOCAL", r.tunnel))
	}
	if r.marked {
		words = append(words, fmt.Sprintf("-m mark --mark %#x/%#x", mark, mark))
	}
	words = append(words, addressWords("-s", r.src), addressWords("-d", r.dst))
	if r.in != "" {
		words = append(words, "-i "+r.in)
	}
	if r.out != "" {
		words = append(words, "-o "+r.out)
	}
	if r.udp {
		words = append(words, "-p udp")
	}
	words = append(words, commentWords(r.comment))
	switch r.do {
	case leave:
		words = append(words, "-j RETURN")
	case accept:
		words = append(words, "-j ACCEPT")
	case masquerade:
		words = append(words, "-j MASQUERADE")
	}
	if (r.ports != portRange{}) {
		words = append(words, fmt.Sprintf("--to-ports %d-%d", r.ports.low, r.ports.high))
	}
	if r.random {
		words = append(words, "--random-fully")
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// commentWords returns the match of iptables that does nothing but hold a text; it is quoted as
// iptables-save does, which our comments with their blanks need.
func commentWords(text string) string {
	if text == "" {
		return ""
	}
	return `-m comment --comment "` + text + `"`
}

func addressWords(option string, m match) string {
	switch {
	case !m.prefix.IsValid():
		return ""
	case m.not:
		return "! " + option + " " + m.prefix.String()
	}
	return option + " " + m.prefix.String()
}

// savedRule is a rule as iptables-save writes it.
type savedRule struct{ chain, spec string }

// words are those of the rule, without the text of a comment, which may read like anything.
func (r savedRule) words() []string {
	words := splitWords(r.spec)
	for i := range words {
		if i > 0 && words[i-1] == "--comment" {
			words[i] = ""
		}
	}
	return words
}

// target returns the chain or verdict that a rule jumps or goes to.
func (r savedRule) target() string {
	words := r.words()
	for i := len(words) - 2; i >= 0; i-- {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// names reports whether the rule is about a prefix, and whether about any.
func (r savedRule) names(network netip.Prefix) (it, any bool) {
	words := r.words()
	for i, w := range words[:max(0, len(words)-1)] {
		if w == "-s" || w == "-d" {
			any = true
			p, err := netip.ParsePrefix(words[i+1])
			it = it || err == nil && p == network
		}
	}
	return it, any
}

// splitWords splits what iptables-save writes, in which a quoted text is one word and a backslash
// takes the meaning from what follows it.
func splitWords(spec string) (words []string) {
	var word []byte
	begun, quoted := false, false
	for i := 0; i < len(spec); i++ {
		c := spec[i]
		switch {
		case c == '"':
			begun, quoted = true, !quoted
			continue
		case c == ' ' && !quoted:
			if begun {
				words = append(words, string(word))
			}
			word, begun = nil, false
			continue
		case c == '\\' && quoted && i+1 < len(spec):
			i++
			c = spec[i]
		}
		word, begun = append(word, c), true
	}
	if begun {
		words = append(words, string(word))
	}
	return words
}

// savedTable is one table.
type savedTable struct {
	chains []string
	rules  []savedRule
}

func (t savedTable) of(chain string) (list []savedRule) {
	for _, r := range t.rules {
		if r.chain == chain {
			list = append(list, r)
		}
	}
	return list
}

// to returns the rules that lead to a chain.
func (t savedTable) to(chain string) (list []savedRule) {
	for _, r := range t.rules {
		if r.target() == chain {
			list = append(list, r)
		}
	}
	return list
}

// text is the content of a chain and the jumps to it.
func (t savedTable) text(chain string) string {
	return fmt.Sprintf("%v %q %q\n", slices.Contains(t.chains, chain), t.of(chain), t.to(chain))
}

// parseSave reads what iptables-save writes.
func parseSave(text string) map[string]savedTable {
	tables := map[string]savedTable{}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		t := tables[table]
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			t = tables[table]
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			t.chains = append(t.chains, name)
		case strings.HasPrefix(line, "-A "):
			chain, spec, _ := strings.Cut(line[3:], " ")
			t.rules = append(t.rules, savedRule{chain, spec})
		default:
			continue
		}
		tables[table] = t
	}
	return tables
}

// iptWant is what is to be in one chain of iptables.
type iptWant struct {
	table, base, chain string
	rules              []rule // without any, the chain is to be gone
	comment            string // of the jump
}

// jump is the one rule that is to lead to the chain.
func (w iptWant) jump() savedRule {
	return savedRule{w.base, strings.TrimLeft(commentWords(w.comment)+" -j "+w.chain, " ")}
}

// edit returns what tells iptables-restore --noflush to make a chain so, at once.
func (t savedTable) edit(w iptWant) (lines []string) {
	if len(w.rules) == 0 {
		return t.remove(w.chain)
	}
	lines = append(lines, ":"+w.chain+" - [0:0]") // made, or emptied
	for _, r := range w.rules {
		lines = append(lines, "-A "+w.chain+" "+specification(r))
	}
	plain := w.jump()
	have := t.to(w.chain)
	if len(have) == 1 && have[0] == plain {
		return lines
	}
	for _, r := range have {
		lines = append(lines, "-D "+r.chain+" "+r.spec)
	}
	return append(lines, "-A "+plain.chain+" "+plain.spec)
}

// remove returns what takes a chain away with the jumps to it.
func (t savedTable) remove(chain string) (lines []string) {
	if !slices.Contains(t.chains, chain) {
		return nil
	}
	for _, r := range t.to(chain) {
		lines = append(lines, "-D "+r.chain+" "+r.spec)
	}
	return append(lines, "-F "+chain, "-X "+chain)
}

// leave returns what removes flannel's rules about a network.
func (t savedTable) leave(network netip.Prefix) (lines []string) {
	for _, chain := range t.chains {
		if !isFlannels(chain) {
			continue
		}
		var mine []string
		others := false
		for _, r := range t.of(chain) {
			switch it, any := r.names(network); {
			case it:
				mine = append(mine, "-D "+r.chain+" "+r.spec)
			case any:
				others = true
			}
		}
		if len(mine) > 0 && !others {
			mine = t.remove(chain)
		}
		lines = append(lines, mine...)
	}
	return lines
}

// restoreText frames the lines for iptables-restore; "" without lines.
func restoreText(table string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}
