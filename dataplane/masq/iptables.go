package masq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// execPatience bounds how long one process may take, the wait for the lock of
// iptables-legacy included.
const execPatience = 30 * time.Second

// tool is one iptables binary of one family. go-iptables finds out what the binary
// can; reading and writing go through its save and restore, which
// go-iptables lacks: only they read two tables, or change many rules at once.
type tool struct {
	path        string
	legacy      bool   // the binary writes the legacy tables
	randomFully bool   // MASQUERADE knows --random-fully
	saved       string // what ensure left; "" makes it write
}

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
	ipt, err := iptables.New(iptables.IPFamily(protocol), iptables.Path(path))
	if err != nil {
		return nil, err
	}
	t := &tool{path: path, randomFully: ipt.HasRandomFully()}
	version, err := run(ctx, path, "", "--version")
	if err != nil {
		return nil, err
	}
	t.legacy = !strings.Contains(version, "nf_tables") // "iptables v1.8.9 (nf_tables)", before 1.8 without brackets
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
		return "", fmt.Errorf("run %s %s: %w: %s", path, strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

func (t *tool) save(ctx context.Context) (map[string]savedTable, error) {
	text, err := run(ctx, t.path+"-save", "")
	return parseSave(text), err
}

// toolWant is what is to be in the tables of one tool.
type toolWant struct {
	names         names
	network       netip.Prefix // what predecessors did for it goes
	masq, forward []rule
}

func (w toolWant) chains() []iptWant {
	return []iptWant{{natTable, postrouting, w.names.masq, w.masq}, {filterTable, forwardChain, w.names.fwd, w.forward}}
}

// text is all that matters of what was saved.
func (w toolWant) text(saved map[string]savedTable) (text string) {
	for _, c := range w.chains() {
		text += saved[c.table].text(c.chain)
	}
	return text
}

// ensure makes w true, each table at once, unless everything is as ensure left it.
// It reports whether it wrote anything.
func (t *tool) ensure(ctx context.Context, w toolWant) (wrote bool, err error) {
	saved, err := t.save(ctx)
	if err != nil {
		return false, err
	}
	if t.saved != "" && t.saved == w.text(saved) {
		return false, nil
	}
	t.saved = ""
	text := ""
	for _, c := range w.chains() {
		if !t.randomFully {
			c.rules = withoutRandom(c.rules)
		}
		lines := saved[c.table].edit(c)
		if w.network.IsValid() {
			lines = append(lines, saved[c.table].leave(w.names, w.network)...)
		}
		text += restoreText(c.table, lines)
	}
	if text == "" {
		t.saved = w.text(saved)
		return false, nil
	}
	if err := t.restore(ctx, text); err != nil {
		return false, err
	}
	if saved, err = t.save(ctx); err != nil {
		return true, err
	}
	t.saved = w.text(saved)
	return true, nil
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

// errNoTool explains that a binary is missing and what to do about it.
func errNoTool(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("find %s: %w: install it, set EnableNFTables to true in the network config, or do without --ip-masq and with --iptables-forward-rules=false", name, err)
	}
	return fmt.Errorf("find %s: %w", name, err)
}
