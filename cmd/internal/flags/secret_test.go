package flags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, rest, password string }{
		{"", "", ""},
		{"-v 1 --etcd-username=u", "-v 1 --etcd-username=u", ""},
		{"--etcd-password=a=b -v 1", "-v 1", "a=b"},
		{"-v 1 -etcd-password=p", "-v 1", "p"},
		{"--etcd-password p --etcd-username u", "--etcd-username u", "p"},
		{"--etcd-password p --etcd-password=q", "", "q"},
		{"--etcd-password-file=f", "--etcd-password-file=f", ""},
		{"lease list --etcd-password=p -- --etcd-password=q", "lease list -- --etcd-password=q", "p"},
		{"--etcd-password", "", ""},
	} {
		rest, password := WithoutPassword(strings.Fields(c.args))
		if !slices.Equal(rest, strings.Fields(c.rest)) || password != c.password {
			t.Errorf("%q: %q, %q", c.args, rest, password)
		}
	}
}

// TestFilesThatOthersCanRead: each file with a secret that every user can read is named, with its mode and what to do; one that a
// group can read is not.
func TestFilesThatOthersCanRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o644, 0o604, 0o640, 0o600} {
		var args []string
		for _, flag := range []string{"etcd-password-file", "etcd-keyfile", "etcd-certfile", "env-file"} {
			file := filepath.Join(dir, flag)
			text := "secret\n"
			if flag == "env-file" {
				text = "OVERLAYD_ETCD_USERNAME=u\n"
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--"+flag+"="+file)
		}
		o, f, err := Parse(append(args, "--etcd-cafile="+filepath.Join(dir, "etcd-certfile"), "--etcd-endpoints=https://192.0.2.1:2379"))
		if err == nil {
			err = o.Complete(f, func(string) (string, bool) { return "", false })
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"etcd-password-file", "etcd-keyfile", "env-file", "etcd-certfile"} {
			want := mode&4 != 0 && flag != "etcd-certfile" // that is not a secret
			file := filepath.Join(dir, flag)
			said := slices.ContainsFunc(o.Warnings, func(w Warning) bool {
				return strings.HasPrefix(w.Text, "--"+flag+": "+file+" has mode 06") && w.Fix == "chmod o-rwx "+file
			})
			if said != want {
				t.Errorf("mode %o of %s: warned %v: %v", mode, flag, said, o.Warnings)
			}
		}
	}
}
