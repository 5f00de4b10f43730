// Package manual writes down a command line for those who do not run it: man pages, Markdown, and completions of shells.
//
// It links a Markdown parser (cobra/doc), so the daemon does not import it: only its tests do, and `overlayd manual`, which is
// there with the build tag manual.
//
//	manual.go    which commands have a page, completions
//	man.go       man pages, by cobra/doc
//	markdown.go  Markdown: what --help prints
package manual

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// Completions writes a file for each shell that Linux distributions have: overlayd.bash, _overlayd for zsh, overlayd.fish.
func Completions(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := root.Name()
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, name+".bash"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "_"+name)); err != nil {
		return err
	}
	return root.GenFishCompletionFile(filepath.Join(dir, name+".fish"), true)
}

// complete adds what cobra adds when a command runs, and leaves out its help command, which says what --help says.
func complete(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	root.DisableAutoGenTag = true
}

// visit calls do with a command and all below it that users see.
func visit(cmd *cobra.Command, do func(*cobra.Command) error) error {
	cmd.InitDefaultHelpFlag()
	if err := do(cmd); err != nil {
		return err
	}
	for _, c := range children(cmd) {
		if err := visit(c, do); err != nil {
			return err
		}
	}
	return nil
}

// children are the commands right below one that users see, by name.
func children(cmd *cobra.Command) (all []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() {
			all = append(all, c)
		}
	}
	return all
}
