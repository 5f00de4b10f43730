package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

const longPKI = `Makes the certificates with which other hosts reach the embedded etcd of the first host. Run these
commands on the first host, as root:

  overlayd pki init                             # once: the certificate authority
  overlayd pki join-file NODE -o NODE.pem       # for each other host: what it needs to join
  scp NODE.pem root@NODE:/etc/overlayd.pem      # its --join-file

A join file is valid for a year; overlayd doctor warns 30 days before it ends. To renew it, put a new file
in its place: the daemon uses it from the next connection on, or from SIGHUP on.

To replace the authority, for example after a join file was stolen (nothing is restarted):

  overlayd pki rotate                           # the next authority: both are trusted
  overlayd pki join-file NODE -o NODE.pem       # again, for each other host
  overlayd pki rotate --finish                  # files of the old one let nobody in any more`

// newPKICommand makes `overlayd pki`, which only has subcommands.
func newPKICommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make the certificates with which hosts join an embedded etcd",
		Long:  longPKI,
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("want a subcommand: init, join-file or rotate") },
	}
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { // the daemon takes the variable too
		if err := flags.ApplyEnv(cmd.InheritedFlags(), os.LookupEnv); err != nil {
			return usageError{err}
		}
		return nil
	}
	cmd.PersistentFlags().StringVar(&dir, "pki-dir", string(pki.DefaultDir), "directory of the certificate authority")
	cmd.AddCommand(newPKIInitCommand(&dir), newPKIJoinFileCommand(&dir), newPKIRotateCommand(&dir))
	return cmd
}

// pkiError marks what whoever called has to correct. What the disk refuses is not of that kind.
func pkiError(err error) error {
	if err == nil || hostfile.IsRefusal(err) && !errors.Is(err, pki.ErrNone) {
		return err
	}
	return usageError{err}
}

func newPKIInitCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Make the certificate authority, on the first host",
		Long: `Makes a certificate authority with an ECDSA key, in a directory that only root can read. Anyone who has
this key can let hosts in: keep a copy in a safe place, or no copy. The embedded etcd makes its own certificate
with it at start, and whenever the addresses of the host change.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := pki.Dir(*dir).Init(); err != nil {
				return pkiError(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "made a certificate authority in %s, valid until %s\nnext: overlayd pki join-file NODE, for each other host\n",
				*dir, time.Now().Add(pki.AuthorityValidity).UTC().Format(time.DateOnly))
			return nil
		},
	}
}

func newPKIJoinFileCommand(dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "join-file NODE",
		Short: "Make the file with which another host joins",
		Long: `Makes a file with a certificate for NODE, its key, and the certificate of the authority. It prints the file,
or writes it to -o, readable only by its owner. NODE is any name; it appears in the log of the first host. The
file is valid for a year.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("want one argument: NODE")
			}
			text, err := pki.Dir(*dir).JoinFile(args[0])
			if err != nil {
				return pkiError(err)
			}
			if output == "" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return pki.WriteFile(output, text)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, with mode 0600; without it the text is printed")
	return cmd
}

func newPKIRotateCommand(dir *string) *cobra.Command {
	var finish bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the certificate authority, in two steps",
		Long: `Makes the next certificate authority. The embedded etcd then accepts join files of both authorities, and new join
files are of the next one. When every host has a new file, --finish removes the old authority: it closes connections
that use an old file, and shuts those hosts out until they have a new one: their log and overlayd doctor say so.
Nothing is restarted.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			do, done := pki.Dir.Rotate, "made the next certificate authority: both are trusted\nnext: overlayd pki join-file NODE, for each other host, then overlayd pki rotate --finish"
			if finish {
				do, done = pki.Dir.Finish, "the old certificate authority is gone: its join files let nobody in\n"+
					"a host that has no file made since overlayd pki rotate is shut out now: overlayd pki join-file NODE makes one"
			}
			if err := do(pki.Dir(*dir)); err != nil {
				return pkiError(err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), done)
			return nil
		},
	}
	cmd.Flags().BoolVar(&finish, "finish", false, "remove the old authority; its join files let nobody in any more")
	return cmd
}
