package flags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/pki"
)

// joinFile makes an authority in dir, and a join file beside it.
func joinFile(t *testing.T, dir string) string {
	t.Helper()
	if err := pki.Dir(dir).Init(); err != nil {
		t.Fatal(err)
	}
	text, err := pki.Dir(dir).JoinFile("node")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "join.pem")
	if err := pki.WriteFile(path, text); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestJoinFile: it is certificate, key and authority, in TLS with a name that is not the endpoint's, also if
// the flags are checked twice.
func TestJoinFile(t *testing.T) {
	join := joinFile(t, t.TempDir())
	o, err := parsed([]string{"--etcd-endpoints=192.0.2.1:2379", "--join-file=" + join}, nil)
	for range 2 {
		if err != nil {
			t.Fatal(err)
		}
		e := o.Etcd
		if e.CAFile != join || e.CertFile != join || e.KeyFile != join || e.ServerName != pki.ServerName || !slices.Equal(e.Endpoints, []string{"https://192.0.2.1:2379"}) {
			t.Errorf("%+v", e)
		}
		var p problems
		o.Etcd.check(&p)
		err = nil
		for _, e := range p.errs {
			err = e
		}
	}
}

// TestOwnSocket: the host of an etcd with TLS reaches it without a certificate.
func TestOwnSocket(t *testing.T) {
	dir := t.TempDir()
	join := joinFile(t, dir)
	args := []string{"--etcd-embedded", "--etcd-listen-client-url=https://0.0.0.0:2379", "--pki-dir=" + dir, "--etcd-data-dir=" + dir}
	o, err := parsed(args, nil)
	if err != nil || !slices.Equal(o.Etcd.Endpoints, []string{"unix://" + dir + "/client.sock"}) || len(o.Warnings) > 0 {
		t.Errorf("%v: %+v", err, o)
	}
	o, err = parsed(append(args, "--join-file="+join), nil)
	if err != nil || o.Etcd.CAFile+o.Etcd.ServerName != "" || len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0].Text, "--join-file "+join+" is not used") {
		t.Errorf("%v: %+v", err, o)
	}
}

// TestReadableKeys: a file with a key that others can read is warned of, by name.
func TestReadableKeys(t *testing.T) {
	dir := t.TempDir()
	join, ca := joinFile(t, dir), filepath.Join(dir, "ca.pem")
	for args, file := range map[string]string{
		"--etcd-endpoints=https://h:1 --join-file=" + join:                                                          join,
		"--etcd-embedded --etcd-listen-client-url=https://127.0.0.1:1 --etcd-data-dir=" + dir + " --pki-dir=" + dir: ca,
	} {
		for mode, warns := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: false, 0o604: true} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			o, err := parsed(strings.Fields(args), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.ContainsFunc(o.Warnings, func(w Warning) bool { return strings.Contains(w.Text, file) && w.Fix == "chmod o-rwx "+file }); got != warns {
				t.Errorf("%s with mode %o: warned %v: %v", file, mode, got, o.Warnings)
			}
		}
	}
}
