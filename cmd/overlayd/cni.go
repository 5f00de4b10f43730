package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/cniinstall"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/logs"
)

// newCNICommand makes `overlayd cni`, which only has a subcommand.
func newCNICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Install the CNI plugin for a container runtime",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("want a subcommand: install") },
	}
	cmd.AddCommand(newCNIInstallCommand())
	return cmd
}

const longCNIInstall = `Copies the CNI plugin to the container runtime's directory of plugins. Then it waits until the daemon
is ready and subnet.env exists, and writes a CNI config, so that no pod is made before.

The config is that of kube-flannel.yml with the plugin's name, or the file of --cni-conf. With
--cni-version 1.1.0 a runtime that knows that version asks the plugin whether the node is ready (STATUS),
and lets it clean up after lost pods (GC). Every other plugin of the list then has to know 1.1.0, too.

To replace flannel's plugin and keep every pod: --cni-as overlayd-cni,flannel
--cni-conf-out /etc/cni/net.d/10-flannel.conflist

Exit codes: 0 installed, 1 not installed, 2 a wrong flag or config.`

// cniInstallFlags are the flags of `overlayd cni install`.
type cniInstallFlags struct {
	plugin, binDir, conf, confOut, version, subnetFile string
	names                                              []string
	wait                                               time.Duration
	keep                                               bool
}

func newCNIInstallCommand() *cobra.Command {
	o := new(cniInstallFlags)
	cmd := &cobra.Command{
		Use:   "install [flags]",
		Short: "Copy the CNI plugin, and write its config when pods can be made",
		Long:  longCNIInstall,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.ApplyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return usageError{err}
			}
			c, err := o.config(cmd.Flags().Changed("cni-version"))
			if err != nil {
				return usageError{err}
			}
			c.Log = logs.New(logs.Stderr, logs.Config{Journal: flags.LogsToJournal()})
			return o.run(cmd.Context(), cniinstall.New(c))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.binDir, "cni-bin-dir", "/opt/cni/bin", "directory in which the runtime looks for plugins")
	f.StringVar(&o.confOut, "cni-conf-out", "/etc/cni/net.d/10-overlayd.conflist", "config to write; empty: only the plugin is installed")
	f.StringVar(&o.conf, "cni-conf", "", "config to install as it is, in place of the one that is built in")
	f.StringVar(&o.version, "cni-version", "1.0.0", "cniVersion of the config that is built in")
	f.StringSliceVar(&o.names, "cni-as", []string{"overlayd-cni"}, "names under which the plugin is installed; the first is in the config that is built in")
	f.StringVar(&o.plugin, "cni-plugin", "", "program to install (default overlayd-cni beside overlayd)")
	f.StringVar(&o.subnetFile, "subnet-file", flags.DefaultSubnetFile, "subnet file of the daemon")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the daemon; 0: as long as it takes")
	f.BoolVar(&o.keep, "keep", false, "go on, and put back what somebody removes or changes, until a signal")
	return cmd
}

// config checks the flags.
func (o *cniInstallFlags) config(versionGiven bool) (c cniinstall.Config, err error) {
	if o.plugin == "" {
		if o.plugin, err = besideOverlayd("overlayd-cni"); err != nil {
			return c, err
		}
	}
	if info, err := os.Stat(o.plugin); err != nil || !info.Mode().IsRegular() {
		return c, usagef("--cni-plugin %s: want the program overlayd-cni, which make build makes", o.plugin)
	}
	if len(o.names) == 0 {
		return c, usagef("--cni-as: want a name")
	}
	for _, name := range o.names {
		if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
			return c, usagef("--cni-as %q: want the name of a plugin, such as overlayd-cni or flannel", name)
		}
	}
	switch {
	case o.binDir == "":
		return c, usagef(`--cni-bin-dir: "": want a directory`)
	case !filepath.IsAbs(o.subnetFile): // the runtime starts the plugin in another directory
		return c, usagef("--subnet-file %q: want an absolute path", o.subnetFile)
	case o.conf != "" && versionGiven:
		return c, usagef("--cni-version is that of the config that is built in: leave it out beside --cni-conf")
	case o.wait < 0:
		return c, usagef("--wait %s: want a time to wait, such as 30s", o.wait)
	case o.keep && o.wait > 0:
		return c, usagef("--keep and --wait: give one of them")
	}
	c = cniinstall.Config{Plugin: o.plugin, BinDir: o.binDir, Names: o.names, ConfOut: o.confOut, SubnetFile: o.subnetFile}
	if o.conf != "" {
		c.Conf, err = cniinstall.ReadConf(o.conf, o.names)
	} else {
		c.Conf, err = cniinstall.DefaultConf(o.names[0], o.version, o.subnetFile)
	}
	return c, err
}

// besideOverlayd returns where a program is that is installed with this one.
func besideOverlayd(name string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(exe), name); isThere(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside overlayd nor in PATH: install it too, or give its path by --cni-plugin", name)
	}
	return path, nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run installs once or for good.
func (o *cniInstallFlags) run(ctx context.Context, i *cniinstall.Installer) error {
	if o.keep {
		i.Keep(ctx)
		return nil
	}
	if o.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.wait)
		defer cancel()
	}
	return i.Once(ctx)
}
