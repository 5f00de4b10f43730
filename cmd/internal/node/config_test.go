package node

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// TestFix: an error is logged with what to do about it, if somebody knows that.
func TestFix(t *testing.T) {
	err := errors.New("broken")
	for name, c := range map[string]struct {
		fix  func(string, error) string
		want []any
	}{
		"nobody":  {nil, []any{"err", err}},
		"nothing": {func(string, error) string { return "" }, []any{"err", err}},
		"known":   {func(network string, err error) string { return "mend " + network }, []any{"err", err, "fix", "mend red"}},
	} {
		if got := (&Config{Fix: c.fix}).attrs("red", err); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestSubnetFiles: the one network has its own file, each of several one in the directory.
func TestSubnetFiles(t *testing.T) {
	c := Config{SubnetFile: "/run/one.env", SubnetDir: "/run/networks", Networks: []string{"red"}}
	for network, want := range map[string]string{"": "/run/one.env", "red": "/run/networks/red.env", "a.b": "/run/networks/a.b.env"} {
		if got := c.subnetFileOf(network); got != want {
			t.Errorf("%q: got %s, want %s", network, got, want)
		}
		if network != "" && nodefile.NetworkOf(want) != network {
			t.Errorf("%s is of %q, want %q", want, nodefile.NetworkOf(want), network)
		}
	}
	if !c.concerns("red") || c.concerns("blue") || !new(Config).concerns("blue") {
		t.Error("want red alone, and every network if none is named")
	}
}

// TestServedFiles: the networks that a daemon has served are those with a node file, but for those that
// are not wanted.
func TestServedFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.env", "b.env.node", "a.env.node", "c.env"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := Config{SubnetDir: dir}
	for names, want := range map[string]string{"": "a b", "b": "b", "b,a": "a b", "c": ""} {
		c.Networks = nil
		if names != "" {
			c.Networks = strings.Split(names, ",")
		}
		var got []string
		for _, file := range c.servedFiles() {
			got = append(got, nodefile.NetworkOf(file))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("networks %q: %q, want %q", names, got, want)
		}
	}
}
