package flags

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestPaths: every flag of the daemon that names a file or a directory becomes absolute, and what is absolute or empty stays.
func TestPaths(t *testing.T) {
	t.Parallel()
	o, f := new(Flags), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Register(f)
	before := map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) { before[flag.Name] = flag.Value.String() })
	MakeAbsolute(f, "/d")
	f.VisitAll(func(flag *pflag.Flag) {
		if v := flag.Value.String(); v != before[flag.Name] {
			t.Errorf("--%s is %q, was %q", flag.Name, v, before[flag.Name])
		}
		isPath := regexp.MustCompile("file|dir|path").MatchString(flag.Name) && !slices.Contains([]string{EnvFlag, "min-path-mtu"}, flag.Name)
		if isPath != slices.Contains(paths, flag.Name) {
			t.Errorf("--%s is a path: %t", flag.Name, isPath)
		}
		if isPath {
			flag.Value.Set("a/../b")
		}
	})
	for flag, value := range map[string]string{"etcd-endpoints": "unix://s, unix:///s,http://h:1", "etcd-listen-client-url": "unix://s"} {
		f.Set(flag, value)
	}
	MakeAbsolute(f, "/d")
	for _, flag := range paths {
		if v := f.Lookup(flag).Value.String(); v != "/d/b" {
			t.Errorf("--%s is %q", flag, v)
		}
	}
	for flag, want := range map[string]string{"etcd-endpoints": "unix:///d/s,unix:///s,http://h:1", "etcd-listen-client-url": "unix:///d/s"} {
		if v := f.Lookup(flag).Value.String(); v != want {
			t.Errorf("--%s is %q, want %q", flag, v, want)
		}
	}
}

// TestFlagsOfAnotherProcess: its relative paths are of its directory, also those in its environment.
func TestFlagsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, f, err := Parse(strings.Fields("--etcd-embedded --etcd-data-dir etcd --etcd-username u"))
	if err != nil {
		t.Fatal(err)
	}
	o.Etcd.Dir = dir
	err = o.Etcd.Complete(f, func(name string) (string, bool) { return "pw", name == "FLANNELD_ETCD_PASSWORD_FILE" })
	if want := "unix://" + dir + "/etcd/client.sock"; err != nil || o.Etcd.Password != "hush" || !slices.Equal(o.Etcd.Endpoints, []string{want}) {
		t.Errorf("password %q, endpoints %q, %v, want %s", o.Etcd.Password, o.Etcd.Endpoints, err, want)
	}
}
