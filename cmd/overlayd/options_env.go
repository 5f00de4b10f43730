package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envNames are the variables of a flag, the one that wins first.
func envNames(flag string) [2]string {
	name := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	return [2]string{"OVERLAYD_" + name, "FLANNELD_" + name}
}

func fromEnv(env func(string) (string, bool), flag string) bool {
	for _, name := range envNames(flag) {
		if v, ok := env(name); ok && v != "" {
			return true
		}
	}
	return false
}

func applyEnv(f *pflag.FlagSet, env func(string) (string, bool)) (err error) {
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "help" || flag.Name == "version" { // OVERLAYD_VERSION is an image's tag
			return
		}
		for _, name := range envNames(flag.Name) {
			v, ok := env(name)
			if !ok || v == "" {
				continue
			}
			if serr := flag.Value.Set(v); serr != nil {
				err = errors.Join(err, fmt.Errorf("environment variable %s: invalid value %q: %w", name, shown(flag.Name, v), serr))
			}
			flag.Changed = true
			return
		}
	})
	return err
}

// shown is a value as it may appear in an error: what is or may hold a password does not.
func shown(flag, value string) string {
	if holdsSecret(flag) {
		return "…"
	}
	return value
}

func holdsSecret(flag string) bool { return flag == "etcd-password" || flag == "etcd-endpoints" }

// flagError is an error of the command line as it may be shown.
func flagError(_ *cobra.Command, err error) error {
	if bad := new(pflag.InvalidValueError); errors.As(err, &bad) && holdsSecret(bad.GetFlag().Name) {
		return usagef("invalid value for --%s: %w", bad.GetFlag().Name, bad.Unwrap())
	}
	return usageError{err}
}
