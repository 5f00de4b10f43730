package flags

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// EnvNames returns the variables of a flag, the one that wins first.
func EnvNames(flag string) [2]string {
	name := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	return [2]string{"OVERLAYD_" + name, "FLANNELD_" + name}
}

// Given reports whether a flag is on the command line or in the environment.
func Given(f *pflag.FlagSet, env func(string) (string, bool), flag string) bool {
	if f.Changed(flag) {
		return true
	}
	for _, name := range EnvNames(flag) {
		if v, ok := env(name); ok && v != "" {
			return true
		}
	}
	return false
}

// ApplyEnv gives the flags that are not on the command line the values of their variables.
func ApplyEnv(f *pflag.FlagSet, env func(string) (string, bool)) error {
	var p problems
	applyEnv(f, env, &p)
	return errors.Join(p.errs...)
}

// applyEnv is ApplyEnv, which reports to p.
func applyEnv(f *pflag.FlagSet, env func(string) (string, bool), p *problems) {
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "help" || flag.Name == "version" { // OVERLAYD_VERSION is an image's tag
			return
		}
		for _, name := range EnvNames(flag.Name) {
			v, ok := env(name)
			if !ok || v == "" {
				continue
			}
			if err := flag.Value.Set(v); err != nil {
				p.badVariable(flag, name, v, err)
			}
			flag.Changed = true
			return
		}
	})
}

// badVariable notes a variable that cannot be read. flanneld goes on after one of its own and
// takes what is neither true nor false for false: so does overlayd, to start in its place. It refuses the others.
func (p *problems) badVariable(flag *pflag.Flag, name, value string, err error) {
	if flag.Value.Type() == "bool" && strings.HasPrefix(name, "FLANNELD_") {
		p.warn(fmt.Sprintf("environment variable %s: %q is taken for false, as flanneld does", name, value), "true or false")
		p.add(flag.Value.Set("false"))
		return
	}
	p.add(fmt.Errorf("environment variable %s: %q: %w", name, shown(flag.Name, value), wanted(flag, err)))
}

// wanted says what a flag of a type that Go knows takes, in the place of the error of Go.
func wanted(flag *pflag.Flag, err error) error {
	if want := map[string]string{"int": "want a whole number", "uint": "want a whole number from 0", "bool": "want true or false",
		"duration": "want a time such as 10s or 1h30m"}[flag.Value.Type()]; want != "" {
		return errors.New(want)
	}
	return err
}

// shown is a value as it may appear in an error: one that is or may hold a password does not.
func shown(flag, value string) string {
	if holdsSecret(flag) {
		return "…"
	}
	return value
}

func holdsSecret(flag string) bool { return flag == "etcd-password" || flag == "etcd-endpoints" }

// Readable returns an error of the command line as it may be shown: without secrets, and in the words of the other errors.
func Readable(err error) error {
	bad := new(pflag.InvalidValueError)
	if !errors.As(err, &bad) {
		return err
	}
	flag := bad.GetFlag()
	return fmt.Errorf("--%s: %q: %w", flag.Name, shown(flag.Name, bad.GetValue()), wanted(flag, bad.Unwrap()))
}

// Normalize gives flannel's single-dash long flags (-etcd-endpoints=…) the second dash that pflag
// wants. The value of a flag that is a word of its own stays as it is, whatever it begins with.
func Normalize(f *pflag.FlagSet, args []string) []string {
	out := make([]string, len(args))
	isValue := false
	for i, a := range args {
		out[i] = a
		if isValue {
			isValue = false
			continue
		}
		if a == "--" {
			copy(out[i:], args[i:])
			break
		}
		isValue = takesNext(f, a)
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		if name == "" || name[0] >= '0' && name[0] <= '9' { // a negative number
			continue
		}
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(name, "-") && name != "h" && (len(name) > 1 || f.Lookup(name) != nil) {
			out[i] = "-" + a
		}
	}
	return out
}

// takesNext reports whether the word behind a flag is its value.
func takesNext(f *pflag.FlagSet, word string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if !strings.HasPrefix(word, "-") || name == "" {
		return false
	}
	flag := f.Lookup(name)
	if flag == nil && len(name) == 1 {
		flag = f.ShorthandLookup(name)
	}
	return flag != nil && flag.NoOptDefVal == ""
}
