package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/manual"
)

// TestDocsCLI: docs/cli has what --help of each command says today.
func TestDocsCLI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := manual.Markdown(newRootCommand(), dir); err != nil {
		t.Fatal(err)
	}
	const docs = "../../docs/cli"
	want, got := readAll(t, dir), readAll(t, docs)
	for name, text := range want {
		if got[name] != text {
			t.Errorf("docs/cli/%s is not what overlayd --help says: run make docs", name)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("docs/cli/%s is of no command: run make docs", name)
	}
}

// readAll reads the files of a directory, by name.
func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[f.Name()] = string(text)
	}
	return all
}

// TestUnits: the unit for one of several networks differs from the other one in its name, where its flags come from, and where its files are.
func TestUnits(t *testing.T) {
	t.Parallel()
	settings := func(file string) (lines []string) {
		b, err := os.ReadFile(filepath.Join("../../deploy/systemd", file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if line[0] != '#' && line[0] != '\n' {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
	one, each := settings("overlayd.service"), settings("overlayd@.service")
	each = slices.DeleteFunc(each, func(line string) bool {
		return line == "Environment=OVERLAYD_SUBNET_FILE=/run/flannel/networks/%i.env OVERLAYD_ETCD_DATA_DIR=/var/lib/overlayd/%i"
	})
	if len(one) != len(each) {
		t.Fatalf("%d settings, and %d", len(one), len(each))
	}
	for i, line := range one {
		switch line {
		case "Description=overlayd, a VXLAN overlay network":
			line += " (%i)"
		case "ExecStart=/usr/bin/overlayd --env-file=-/etc/overlayd.env":
			line = "ExecStart=/usr/bin/overlayd --env-file=/etc/overlayd/%i.env"
		}
		if each[i] != line {
			t.Errorf("overlayd@.service: %s, want %s", each[i], line)
		}
	}
}
