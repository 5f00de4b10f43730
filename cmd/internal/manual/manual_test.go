package manual_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/manual"
)

// tree is a command with one below it, and one that nobody should see.
func tree() *cobra.Command {
	none := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool", Short: "Does *things* with <file>", Long: "Reads a_b_c.\n\n  tool x   # a comment\n  tool y\n\nAnd ends.", Run: none}
	child := &cobra.Command{Use: "x NAME", Short: "Does x", Run: none}
	child.Flags().String("prefix", "", "below <prefix>/[name]")
	root.AddCommand(child, &cobra.Command{Use: "secret", Hidden: true, Run: none})
	return root
}

// TestMan: each character is in the page as it is in the text, blocks are kept, and the page is the same for the same date.
func TestMan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := manual.Man(tree(), dir, "v1", time.Unix(1764000000, 0)); err != nil {
		t.Fatal(err)
	}
	root, child := read(t, dir, "tool.8"), read(t, dir, "tool-x.8")
	for _, part := range []string{"Does *things* with <file>", "Reads a_b_c.", "\n.EX\n  tool x   # a comment\n  tool y\n.EE\n", "And ends.", `"Nov 2025"`, "tool v1", "tool-x(8)"} {
		if !strings.Contains(plain(root), part) {
			t.Errorf("tool.8 lacks %q:\n%s", part, root)
		}
	}
	if !strings.Contains(plain(child), "below <prefix>/[name]") {
		t.Errorf("tool-x.8:\n%s", child)
	}
	if _, err := os.Stat(filepath.Join(dir, "tool-secret.8")); err == nil || strings.Contains(root, "secret") || strings.Contains(root, "help(8)") {
		t.Errorf("a page of a hidden command:\n%s", root)
	}
}

// plain is roff without its escapes.
func plain(roff string) string {
	return strings.NewReplacer(`\-`, "-", `\[la]`, "<", `\[ra]`, ">", `\&`, "", `\fB`, "", `\fP`, "", `\_`, "_").Replace(roff)
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMarkdown: a page has what --help prints and links, and every link leads to a page.
func TestMarkdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := manual.Markdown(tree(), dir); err != nil {
		t.Fatal(err)
	}
	root, child := read(t, dir, "tool.md"), read(t, dir, "tool-x.md")
	for _, part := range []string{"# tool\n\n```text\n", "  tool x   # a comment\n", "- [tool x](tool-x.md): Does x\n"} {
		if !strings.Contains(root, part) {
			t.Errorf("tool.md lacks %q:\n%s", part, root)
		}
	}
	if !strings.Contains(child, "A command of [tool](tool.md).") || !strings.Contains(child, "below <prefix>/[name]") {
		t.Errorf("tool-x.md:\n%s", child)
	}
	if strings.Contains(root, "secret") {
		t.Errorf("a hidden command:\n%s", root)
	}
}

// TestCompletions: there is a file for each shell, with its usual name.
func TestCompletions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := manual.Completions(tree(), dir); err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string]string{"tool.bash": "complete -o default", "_tool": "#compdef tool", "tool.fish": "complete -c tool"} {
		if text := read(t, dir, name); !strings.Contains(text, part) {
			t.Errorf("%s lacks %q", name, part)
		}
	}
}
