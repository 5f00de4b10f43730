package masq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// execPatience bounds how long one process may take, the wait for the lock of
// iptables-legacy included.
const execPatience = 30 * time.Second

// tool is one iptables binary of one family. go-iptables detects its features. Reading and
// writing use iptables-save and -restore, which go-iptables does not support: only they read two
// tables, or change many rules at once.
type tool struct {
	path        string
	version     string
	legacy      bool // the binary writes the legacy tables
	randomFully bool // MASQUERADE knows --random-fully

	saved   string // what ensure found in order; "" makes it look closer
	wrote   bool   // ensure has written and not yet compared
	last    string // the tables when it last wrote
	literal bool   // rules were found to read as they are written
}

// errOtherTool means that the binary was replaced since it was found: it may write other tables
// now.
var errOtherTool = errors.New("iptables has become another program, which is used from now on")

// findTool looks for the iptables of a family by name, such as "iptables-legacy".
func findTool(ctx context.Context, f family, name string) (*tool, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	protocol := iptables.ProtocolIPv4
	if f == ipv6 {
		protocol = iptables.ProtocolIPv6
	}
	t := &tool{path: path}
	if t.version, err = run(ctx, path, "", "--version"); err != nil { // first: go-iptables does not wrap the cause
		return nil, err
	}
	ipt, err := iptables.New(iptables.IPFamily(protocol), iptables.Path(path))
	if err != nil {
		return nil, err
	}
	t.randomFully = ipt.HasRandomFully()
	t.legacy = !strings.Contains(t.version, "nf_tables") // "iptables v1.8.9 (nf_tables)", before 1.8 without brackets
	return t, nil
}

// commandOf is the name of the binary: "iptables" or "ip6tables".
func commandOf(f family) string { return f.String() + "tables" }

// findLegacy looks for the binary of a family that writes the legacy tables.
func findLegacy(ctx context.Context, f family) (*tool, error) {
	t, err := findTool(ctx, f, commandOf(f)+"-legacy")
	if err == nil {
		return t, nil
	}
	if t, err := findTool(ctx, f, commandOf(f)); err == nil && t.legacy {
		return t, nil
	}
	return nil, err
}

func run(ctx context.Context, path, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, execPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	var out, problem bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &problem
	if err := cmd.Run(); err != nil {
		if text := problem.String(); strings.Contains(text, "lock file") && strings.Contains(text, "Permission denied") {
			err = fmt.Errorf("%w: %w", err, ErrLockFile)
		}
		return "", fmt.Errorf("run %s %s: %w: %s", path, strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

// ErrLegacyHidden means that iptables is iptables-legacy, and this user is not root.
var ErrLegacyHidden = errors.New("iptables is iptables-legacy here, whose tables the kernel lists to root alone: set EnableNFTables to true in the network config, or use the iptables of nf_tables")

// ErrLockFile means that this user may not open the lock of iptables-legacy, which is root's.
var ErrLockFile = errors.New("this user may not open the lock of iptables-legacy: set EnableNFTables to true in the network config, or give the daemon the variable XTABLES_LOCKFILE with a file of this user's")

func (t *tool) save(ctx context.Context) (map[string]savedTable, error) {
	text, err := run(ctx, t.path+"-save", "")
	return parseSave(text), err
}

// toolWant is the wanted content of the tables of one tool.
type toolWant struct {
	names         names
	network       netip.Prefix // flannel's rules for it are removed
	masq, forward []rule
}

func (w toolWant) chains() []iptWant {
	return []iptWant{
		{natTable, postrouting, w.names.masq, w.masq, masqComment},
		{filterTable, forwardChain, w.names.fwd, w.forward, forwardComment},
	}
}

// text is all that matters of what was saved.
func (w toolWant) text(saved map[string]savedTable) (text string) {
	for _, c := range w.chains() {
		text += saved[c.table].text(c.chain)
	}
	return text
}

// ensure makes w true, each table at once, and reports whether it wrote anything.
// It is called until it did not: then the tables were in order when it looked. In
// order is what reads as wanted, or, for an iptables that has always had other words for it, as many rules
// that read the same after they were written twice.
func (t *tool) ensure(ctx context.Context, w toolWant) (wrote bool, err error) {
	if !t.randomFully {
		w.masq = withoutRandom(w.masq)
	}
	saved, err := t.save(ctx)
	if err != nil {
		return false, err
	}
	have, text := w.text(saved), w.restoreText(saved)
	literal := have == w.expected()
	t.literal = t.literal || literal
	inOtherWords := t.wrote && have == t.last && !t.literal && w.isComplete(saved)
	if text == "" || have == t.saved || inOtherWords || literal && !w.replaces(saved) {
		t.saved, t.wrote, t.last = have, false, ""
		return false, nil
	}
	if version, err := run(ctx, t.path, "", "--version"); err != nil || version != t.version {
		return false, errors.Join(err, errOtherTool)
	}
	if t.wrote {
		t.last = have
	}
	t.saved, t.wrote = "", true
	return true, t.restore(ctx, text)
}

// expected is the text of tables that read literally as wanted.
func (w toolWant) expected() string {
	tables := map[string]savedTable{}
	for _, c := range w.chains() {
		if len(c.rules) == 0 {
			continue
		}
		table := savedTable{chains: []string{c.chain}, rules: []savedRule{c.jump()}}
		for _, r := range c.rules {
			table.rules = append(table.rules, savedRule{c.chain, specification(r)})
		}
		tables[c.table] = table
	}
	return w.text(tables)
}

// isComplete reports whether each chain has as many rules as wanted, and one that leads to it.
func (w toolWant) isComplete(saved map[string]savedTable) bool {
	return !slices.ContainsFunc(w.chains(), func(c iptWant) bool {
		t := saved[c.table]
		return len(t.of(c.chain)) != len(c.rules) || len(t.to(c.chain)) != min(1, len(c.rules))
	})
}

// replaces reports whether there are rules of flannel to be removed.
func (w toolWant) replaces(saved map[string]savedTable) bool {
	return slices.ContainsFunc(w.chains(), func(c iptWant) bool { return len(saved[c.table].leave(w.network)) > 0 })
}

func (w toolWant) restoreText(saved map[string]savedTable) (text string) {
	for _, c := range w.chains() {
		lines := append(saved[c.table].edit(c), saved[c.table].leave(w.network)...)
		text += restoreText(c.table, lines)
	}
	return text
}

func withoutRandom(rules []rule) []rule {
	rules = append([]rule(nil), rules...)
	for i := range rules {
		rules[i].random = false
	}
	return rules
}

func (t *tool) restore(ctx context.Context, text string) error {
	if _, err := run(ctx, t.path+"-restore", text, "--noflush", "--wait=10"); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	return nil
}

// ErrNoIptables means that this host has no iptables, or no ip6tables, for rules that are to be
// written by it.
var ErrNoIptables = errors.New("install it, or set EnableNFTables to true in the network config")

// errNoTool returns the error for a binary that cannot be used.
func errNoTool(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("find %s: %w: %w", name, err, ErrNoIptables)
	}
	return fmt.Errorf("find %s: %w", name, err)
}
