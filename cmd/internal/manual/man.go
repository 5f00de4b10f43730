package manual

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// section is that of commands for administrators.
const section = "8"

// Man writes a man page for each command. It changes the texts of root: the caller makes a command of its own for it.
func Man(root *cobra.Command, dir, version string, date time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	complete(root)
	if err := visit(root, asMarkdown); err != nil {
		return err
	}
	date = date.UTC()
	header := &doc.GenManHeader{Section: section, Date: &date, Source: root.Name() + " " + version, Manual: root.Name()}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return err
	}
	return visit(root, func(cmd *cobra.Command) error {
		return ragged(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+"."+section))
	})
}

// ragged has troff leave the right margin as it is: it cannot adjust a line with a long flag, and warns.
func ragged(file string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.Replace(page, []byte("\n.SH NAME"), []byte("\n.ad l\n.SH NAME"), 1), 0o644)
}

// asMarkdown makes Markdown, which cobra/doc takes them for, of a command's texts.
func asMarkdown(cmd *cobra.Command) error {
	if cmd.Long == "" {
		cmd.Long = cmd.Short
	}
	cmd.Short, cmd.Long = escaped(cmd.Short), blocks(cmd.Long)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if cmd.NonInheritedFlags().Lookup(f.Name) != nil {
			f.Usage = escaped(f.Usage)
		}
	})
	return nil
}

// blocks escapes text, of which lines that begin with a space are a block that is kept as it is.
func blocks(text string) string {
	var b strings.Builder
	inBlock := false
	for line := range strings.Lines(text) {
		empty := strings.TrimSpace(line) == ""
		if block := line[0] == ' '; !empty && block != inBlock {
			b.WriteByte('\n')
			inBlock = block
		}
		switch {
		case inBlock && !empty:
			b.WriteString("    " + line)
		case empty:
			b.WriteByte('\n')
		default:
			b.WriteString(escaped(line))
		}
	}
	return b.String()
}

// escaped has Markdown take each character for itself.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`, "|", `\|`).Replace(text)
}
