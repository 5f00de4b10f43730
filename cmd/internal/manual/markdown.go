package manual

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Markdown writes a page for each command: what its --help prints, which has the flags in their groups, and links.
func Markdown(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	complete(root)
	return visit(root, func(cmd *cobra.Command) error {
		text, err := page(cmd)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, fileOf(cmd)), []byte(text), 0o644)
	})
}

// fileOf returns the file name of a command's page.
func fileOf(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".md"
}

// page returns a command's page.
func page(cmd *cobra.Command) (string, error) {
	var help bytes.Buffer
	cmd.SetOut(&help)
	if err := cmd.Help(); err != nil {
		return "", fmt.Errorf("help of %s: %w", cmd.CommandPath(), err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", cmd.CommandPath())
	if parent := cmd.Parent(); parent != nil {
		fmt.Fprintf(&b, "A command of [%s](%s).\n\n", parent.CommandPath(), fileOf(parent))
	}
	fmt.Fprintf(&b, "```text\n%s\n```\n", trimmed(help.String()))
	for i, c := range children(cmd) {
		if i == 0 {
			fmt.Fprintf(&b, "\n## Commands\n\n")
		}
		fmt.Fprintf(&b, "- [%s](%s): %s\n", c.CommandPath(), fileOf(c), strings.ReplaceAll(c.Short, "<", "&lt;"))
	}
	return b.String(), nil
}

// trimmed returns text without spaces at the ends of lines, nor empty lines at its own end.
func trimmed(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, strings.TrimRight(line, " \t"))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
