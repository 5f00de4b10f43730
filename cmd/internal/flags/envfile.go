package flags

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// EnvFlag is the flag that names a file with variables.
const EnvFlag = "env-file"

// WithEnvFile returns env with the variables of the file that --env-file names, in f or in env, before its own. file
// holds the variables of the file; nil: no file is named. An error names the file and the line, and no value: it may be a password.
func WithEnvFile(f *pflag.FlagSet, env func(string) (string, bool)) (both func(string) (string, bool), file map[string]string, err error) {
	name, mayLack := strings.CutPrefix(envFileOf(f, env), "-")
	if name == "" {
		return env, nil, nil
	}
	if !filepath.IsAbs(name) { // overlayd lease reads it too, elsewhere
		return env, nil, fmt.Errorf("--%s: %q: want an absolute path", EnvFlag, name)
	}
	text, err := hostfile.Read(name)
	switch {
	case mayLack && errors.Is(err, fs.ErrNotExist):
		return env, nil, nil
	case err != nil:
		return env, nil, fmt.Errorf("--%s: %w", EnvFlag, err)
	}
	if file, err = parseEnv(string(text)); err != nil {
		return env, nil, fmt.Errorf("--%s: %s: %w", EnvFlag, name, err)
	}
	return func(key string) (string, bool) {
		if v, ok := file[key]; ok {
			return v, true
		}
		return env(key)
	}, file, nil
}

// envFileOf returns the value of --env-file; f need not have the flag.
func envFileOf(f *pflag.FlagSet, env func(string) (string, bool)) string {
	if flag := f.Lookup(EnvFlag); flag != nil && flag.Changed {
		return flag.Value.String()
	}
	for _, name := range EnvNames(EnvFlag) {
		if v, ok := env(name); ok && v != "" {
			return v
		}
	}
	return ""
}

// parseEnv reads lines of NAME=value, as systemd's EnvironmentFile has them: quotes around a value are
// left out, and so are empty lines and those that begin with # or ;.
func parseEnv(text string) (map[string]string, error) {
	isName := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	vars, n := map[string]string{}, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch {
		case !ok || !isName.MatchString(name):
			return nil, fmt.Errorf("line %d: want NAME=value", n)
		case strings.HasSuffix(value, "\\"):
			return nil, fmt.Errorf("line %d: a value cannot go on in the next line", n)
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') {
			if value[len(value)-1] != value[0] {
				return nil, fmt.Errorf("line %d: the quote at the beginning of the value has no end", n)
			}
			value = value[1 : len(value)-1]
		}
		vars[name] = value
	}
	return vars, nil
}

// warnOfUnknown warns of variables of a file that are meant for overlayd, and that no flag is named after.
func warnOfUnknown(f *pflag.FlagSet, file map[string]string, p *problems) {
	for _, name := range slices.Sorted(maps.Keys(file)) {
		if flag, ours := strings.CutPrefix(name, ownPrefix); ours && !isFlag(f, flag) {
			p.warn(fmt.Sprintf("--%s: %s has no effect: there is no such flag", EnvFlag, name), "overlayd --help lists the flags")
		}
	}
}

// ownPrefix is what variables for overlayd begin with.
const ownPrefix = "OVERLAYD_"

// isFlag reports whether a variable with this name behind its prefix is that of a flag.
func isFlag(f *pflag.FlagSet, name string) bool {
	name = strings.ToLower(name)
	return f.Lookup(name) != nil || f.Lookup(strings.ReplaceAll(name, "_", "-")) != nil
}

// Misspelt warns of variables of the environment that nearly have the name of a flag, as nearest finds it. Others may be meant for other
// programs: Kubernetes sets OVERLAYD_SERVICE_HOST if there is a service of that name.
func Misspelt(f *pflag.FlagSet, environ []string, nearest func(name string, names []string) string) (all []Warning) {
	var names []string
	f.VisitAll(func(flag *pflag.Flag) { names = append(names, strings.TrimPrefix(EnvNames(flag.Name)[0], ownPrefix)) })
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		flag, ours := strings.CutPrefix(name, ownPrefix)
		if !ours || isFlag(f, flag) {
			continue
		}
		if near := nearest(flag, names); near != "" {
			all = append(all, Warning{fmt.Sprintf("environment variable %s has no effect: there is no such flag", name), ownPrefix + near})
		}
	}
	return all
}
