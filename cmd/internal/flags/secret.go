package flags

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// PasswordEnv is the variable with a password that was an argument: see WithoutPassword. Unlike a variable of the flag it wins
// over --env-file, as an argument does. Of another user's process nobody but root can read variables (proc(5)).
const PasswordEnv = "OVERLAYD_ARGUMENT_ETCD_PASSWORD"

// WithoutPassword returns arguments without those that give the password of etcd, and the password, which is empty if none does.
func WithoutPassword(args []string) (rest []string, password string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(rest, args[i:]...), password
		}
		name, value, ok := strings.Cut(args[i], "=")
		if name != "--etcd-password" && name != "-etcd-password" {
			rest = append(rest, args[i])
			continue
		}
		if !ok && i+1 < len(args) {
			i++
			value = args[i]
		}
		password = value
	}
	return rest, password
}

// applyPassword gives f the password that was an argument.
func applyPassword(f *pflag.FlagSet, env func(string) (string, bool)) {
	if v, ok := env(PasswordEnv); ok && v != "" && !f.Changed("etcd-password") {
		_ = f.Set("etcd-password", v) // any text is one
	}
}

// warnOfReaders warns of a file with a secret that every user of this host can read.
func (p *problems) warnOfReaders(flag, file string) {
	if file == "" {
		return
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm()&0o004 == 0 { // one that cannot be read is an error elsewhere
		return
	}
	p.warn(fmt.Sprintf("--%s: %s has mode %04o: every user of this host can read it", flag, file, info.Mode().Perm()), "chmod o-rwx "+file)
}
