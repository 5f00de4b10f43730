package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCNIInstall: the plugin is there before the daemon is ready, and the config when it is; a host of flannel's plugin
// keeps its config.
func TestCNIInstall(t *testing.T) {
	t.Parallel()
	h := newCluster(t, 1, testNetwork).hosts[0]
	program, err := cniProgram()
	if err != nil {
		t.Fatal(err)
	}
	bin, conf := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "net.d", "10-overlayd.conflist")
	args := []string{"cni", "install", "--cni-plugin", program, "--cni-bin-dir", bin, "--cni-conf-out", conf, "--subnet-file", h.subnetFile}

	early := h.overlayd(append(args, "--wait", "10ms")...)
	if code := early.wait(patience); code != exitFailure || !strings.Contains(early.text(), conf+" is not installed: ") || !strings.Contains(early.text(), "subnet.env: no such file or directory") {
		t.Errorf("without a daemon: exit code %d\n%s", code, early.text())
	}
	keep := h.overlayd(append(args, "--keep", "--cni-as", "overlayd-cni,flannel")...)
	keep.waitLog("the CNI config waits for the daemon", patience)
	h.up("--dataplane", modeUserspace)
	keep.waitLog(`msg="CNI file installed" file=`+conf, patience)
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
	keep.waitLog("is there again", patience)
	if code := keep.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"overlayd-cni", "flannel"} {
		if info, err := os.Stat(filepath.Join(bin, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(conf)
	if err != nil || !strings.Contains(string(text), `"subnetFile": "`+h.subnetFile) {
		t.Errorf("%s, %v", text, err)
	}

	flannels := filepath.Join(filepath.Dir(conf), "10-flannel.conflist")
	const own = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true}}]}`
	err = os.WriteFile(flannels, []byte(own), 0o600)
	for range 2 {
		p := h.overlayd(append(args, "--cni-as", "flannel", "--cni-conf", flannels, "--cni-conf-out", flannels)...)
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit code %d\n%s", code, p.text())
		}
	}
	if text, rerr := os.ReadFile(flannels); string(text) != own {
		t.Errorf("%s, %v", text, errors.Join(err, rerr))
	}
}

// TestCNIInstallUsage: what is wrong is named, and nothing is installed.
func TestCNIInstallUsage(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.conflist")
	if err := os.WriteFile(bad, []byte(`{"name":"x","plugins":[{"type":7}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, value, says string }{
		{"--cni-plugin", dir, dir}, {"--cni-as", "../x", `"../x"`}, {"--cni-as", "", "want a name"}, {"--cni-bin-dir", "", "want a directory"}, {"--subnet-file", "run/subnet.env", `--subnet-file "run/subnet.env": want an absolute path`}, {"--cni-version", "7", `"7"`},
		{"--cni-conf", bad, bad}, {"--cni-conf", "/nowhere", "/nowhere"}, {"--wait", "-1s", "--wait"}, {"--cni-name", "x", "--cni-name"},
	} {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"cni", "install", "--cni-plugin", exe, "--cni-bin-dir", filepath.Join(dir, "bin"), "--cni-conf-out", filepath.Join(dir, "conf"), c.flag, c.value}
		if code, out := overlayd(t, args...); code != exitUsage || !strings.Contains(out, c.says) || strings.Count(out, "\n") > 3 {
			t.Errorf("%s %q: exit code %d\n%s", c.flag, c.value, code, out)
		}
	}
	if code, out := overlayd(t, "cni", "install"); code != exitUsage && code != exitFailure || !strings.Contains(out, "overlayd-cni") {
		t.Errorf("no program: exit code %d\n%s", code, out)
	}
	if code, out := overlayd(t, "cni"); code != exitUsage || !strings.Contains(out, "install") {
		t.Errorf("no subcommand: exit code %d\n%s", code, out)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("left: %v, %v", all, err)
	}
}
