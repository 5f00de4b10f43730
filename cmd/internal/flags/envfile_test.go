package flags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// envFile writes a file of variables.
func envFile(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "overlayd.env")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEnvFilePrecedence: a flag wins over the file, and the file over the environment.
func TestEnvFilePrecedence(t *testing.T) {
	t.Parallel()
	file := envFile(t, "# of this host\n\n; and\n OVERLAYD_ETCD_PREFIX= /file \nFLANNELD_PUBLIC_IP='203.0.113.1'\r\nOVERLAYD_V=\"1\"\nNODE_NAME=n\nOVERLAYD_HEALTHZ_IP=\"\"\nGOGC=50")
	none := envFile(t, "OVERLAYD_ETCD_PREFIX=/other\n")
	for _, c := range []struct {
		name, args string
		env        map[string]string
		prefix     string
		verbosity  int
	}{
		{"by a flag", "--env-file=" + file, nil, "/file", 1},
		{"by a variable", "", map[string]string{"OVERLAYD_ENV_FILE": file}, "/file", 1},
		{"by flannel's variable", "", map[string]string{"FLANNELD_ENV_FILE": file}, "/file", 1},
		{"over the environment", "--env-file=" + file, map[string]string{"OVERLAYD_ETCD_PREFIX": "/env", "OVERLAYD_ENV_FILE": none}, "/file", 1},
		{"under a flag", "--etcd-prefix=/flag -v=0 --env-file=" + file, nil, "/flag", 0},
		{"may be missing, and is there", "--env-file=-" + file, nil, "/file", 1},
		{"may be missing, and is", "--env-file=-" + file + "x", map[string]string{"OVERLAYD_ETCD_PREFIX": "/env"}, "/env", 0},
	} {
		o, err := parsed(strings.Fields(c.args), c.env)
		if err != nil || o.Etcd.Prefix != c.prefix || o.Process.verbosity != c.verbosity || len(o.Warnings) > 0 {
			t.Errorf("%s: prefix %q, -v %d, %v, %v", c.name, o.Etcd.Prefix, o.Process.verbosity, err, o.Warnings)
		}
		if isRead := c.prefix != "/env"; isRead && (o.Kube.NodeName != "n" || o.Config().Underlay.PublicIP.String() != "203.0.113.1" || o.Process.HealthzIP != "0.0.0.0") {
			t.Errorf("%s: node %q, public IP %v, health %q", c.name, o.Kube.NodeName, o.Config().Underlay.PublicIP, o.Process.HealthzIP)
		}
	}
}

// TestEnvFileRefusals: what cannot be read is refused by file and line, and no value is shown.
func TestEnvFileRefusals(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want string }{
		"a FIFO":        {fifo, fifo + ": want a regular file, not a FIFO"},
		"missing":       {"/none/x", "no such file"},
		"relative":      {"x.env", "want an absolute path"},
		"a directory":   {t.TempDir(), "is a directory"},
		"no value":      {envFile(t, "A=b\n"+secret+"\n"), "line 2: want NAME=value"},
		"no name":       {envFile(t, "="+secret), "line 1: want NAME=value"},
		"a bad name":    {envFile(t, "OVERLAYD-V="+secret), "line 1: want NAME=value"},
		"export":        {envFile(t, "export A="+secret), "line 1: want NAME=value"},
		"an open quote": {envFile(t, `A="`+secret), "line 1: the quote"},
		"mixed quotes":  {envFile(t, `A="`+secret+"'"), "line 1: the quote"},
		"continued":     {envFile(t, "A="+secret+"\\\nb"), "line 1: a value cannot go on"},
		"too much":      {envFile(t, strings.Repeat("#\n", hostfile.MaxLen)), "want at most"},
		"a bad value":   {envFile(t, "OVERLAYD_HEALTHZ_PORT=http"), `OVERLAYD_HEALTHZ_PORT: "http": want a whole number`},
		"a secret":      {envFile(t, "OVERLAYD_ETCD_ENDPOINTS=http://u:"+secret+"@h:1"), "--etcd-endpoints"},
	} {
		_, err := parsed([]string{"--env-file=" + c.file}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestEnvFileUnknown: a variable that is meant for overlayd and means nothing to it is warned of.
func TestEnvFileUnknown(t *testing.T) {
	t.Parallel()
	o, err := parsed([]string{"--env-file=" + envFile(t, "OVERLAYD_ETCD_ENDPOINT=x\nOVERLAYD_LOG_BACKTRACE_AT=:0\nFLANNELD_X=1\nPATH=/bin\n")}, nil)
	if err != nil || len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0].Text, "OVERLAYD_ETCD_ENDPOINT has no effect") {
		t.Errorf("%v, %v", err, o.Warnings)
	}
}

// TestDifferences: the flags whose values differ, by name alone.
func TestDifferences(t *testing.T) {
	t.Parallel()
	before := map[string]string{"OVERLAYD_ETCD_PASSWORD": "a", "OVERLAYD_ETCD_USERNAME": "u"}
	after := map[string]string{"OVERLAYD_ETCD_PASSWORD": "b", "OVERLAYD_ETCD_USERNAME": "u", "OVERLAYD_IFACE": "eth1", "OVERLAYD_V": "1"}
	args := []string{"--ip-masq"}
	a, f, err := Parse(args)
	b, g, failed := Parse(args)
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if err := a.Complete(f, lookup(before)); err != nil {
		t.Fatal(err)
	}
	if err := b.Complete(g, lookup(after)); err != nil {
		t.Fatal(err)
	}
	if got := Differences(f, g); !slices.Equal(got, []string{"etcd-password", "iface", "v"}) {
		t.Errorf("got %q", got)
	}
	if got := Differences(g, g); got != nil {
		t.Errorf("of the same %q", got)
	}
	if _, _, err := Parse([]string{"--healthz-port=http"}); err == nil {
		t.Error("a port that is no number is taken")
	}
}

// lookup is an environment.
func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// TestPasswordIsReadAgain: another password in the same file needs no restart.
func TestPasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	var sets []*pflag.FlagSet
	var read func() (string, error)
	for _, password := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o, f, err := Parse([]string{"--etcd-username=u", "--etcd-password-file=" + file})
		if err == nil {
			err = o.Complete(f, lookup(nil))
		}
		if err != nil || o.Etcd.Password != password {
			t.Fatalf("%q, %v; want %q", o.Etcd.Password, err, password)
		}
		if sets = append(sets, f); read == nil {
			read = o.Etcd.PasswordReader()
		}
	}
	if got := Differences(sets[0], sets[1]); got != nil {
		t.Errorf("a restart is said to be needed for %q", got)
	}
	if got, err := read(); got != "two" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}
