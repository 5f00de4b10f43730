//go:build ship

package main

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxLayer is how large a layer may be, compressed, in bytes.
const maxLayer = 30 << 20

// descriptor is what an image layout says of a blob (https://specs.opencontainers.org/image-spec/descriptor).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// layout is an image layout on disk.
type layout string

// read decodes a blob.
func (l layout) read(t *testing.T, d descriptor, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(string(l), "blobs", strings.ReplaceAll(d.Digest, ":", "/")))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", d.Digest, err)
	}
}

// openImage unpacks the image's archive, and returns the manifests by architecture.
func openImage(t *testing.T) (l layout, manifests map[string]descriptor) {
	t.Helper()
	l = layout(t.TempDir())
	archive := filepath.Join(release(t), "overlayd-"+shipVersion+"-image.tar")
	command(t, "tar", "-C", string(l), "-xf", archive)
	var top, index struct{ Manifests []descriptor }
	b, err := os.ReadFile(filepath.Join(string(l), "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("%v: %s", err, b)
	}
	if got := top.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != shipVersion {
		t.Errorf("the image's name is %q, want %s", got, shipVersion)
	}
	if digest, err := os.ReadFile(archive + ".digest"); err != nil || strings.TrimSpace(string(digest)) != top.Manifests[0].Digest {
		t.Errorf("digest %s, %v: want %s", digest, err, top.Manifests[0].Digest)
	}
	l.read(t, top.Manifests[0], &index)
	manifests = map[string]descriptor{}
	for _, m := range index.Manifests {
		manifests[m.Platform.Architecture] = m
	}
	return l, manifests
}

// unpack has umoci make a bundle for runc of the image for an architecture.
func (l layout) unpack(t *testing.T, m descriptor) (bundle string) {
	t.Helper()
	m.Annotations = map[string]string{"org.opencontainers.image.ref.name": m.Platform.Architecture}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{m}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(l), "index.json"), index, 0o644); err != nil {
		t.Fatal(err)
	}
	bundle = filepath.Join(t.TempDir(), "bundle")
	command(t, "umoci", "unpack", "--image", string(l)+":"+m.Platform.Architecture, bundle)
	return bundle
}

// TestShipImage: the image has the programs of each architecture and nothing else, in one small layer.
func TestShipImage(t *testing.T) {
	l, manifests := openImage(t)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		m, ok := manifests[arch]
		if !ok || m.Platform.OS != "linux" {
			t.Fatalf("no manifest for %s: %v", arch, manifests)
		}
		var manifest struct{ Layers []descriptor }
		l.read(t, m, &manifest)
		if len(manifest.Layers) != 1 || manifest.Layers[0].Size > maxLayer {
			t.Errorf("%s: layers %v, want one of at most %d bytes", arch, manifest.Layers, maxLayer)
		}
		root := filepath.Join(l.unpack(t, m), "rootfs")
		for _, name := range programs(t) {
			f, err := elf.Open(filepath.Join(root, "usr/bin", name))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machine {
				t.Errorf("%s of %s is for %s", name, arch, f.Machine)
			}
			f.Close()
		}
		if out := strings.Fields(command(t, "find", root, "-type", "f")); len(out) != len(programs(t)) {
			t.Errorf("%s: the image has %v", arch, out)
		}
	}
}

// programs are the names of those that are shipped.
func programs(t *testing.T) []string {
	t.Helper()
	return strings.Fields(command(t, "sed", "-n", "s/^PROGRAMS := //p", "../../Makefile"))
}

// dockerRun is README's line, as far as Docker has to obey it: the test does that with runc.
type dockerRun struct {
	container
	sysctl   map[string]string
	readOnly bool
	tmpfs    []string
}

// readmeRun reads the line. What it does not know is an error, because the container would not be as README says.
func readmeRun(t *testing.T) (d dockerRun) {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(b), "\ndocker run ")
	if !ok {
		t.Fatal("README has no line with docker run")
	}
	line, _, _ = strings.Cut(strings.ReplaceAll(line, "\\\n", ""), "\n")
	words := strings.Fields(line)
	d = dockerRun{container: container{noNetAdmin: true, noTun: true}, sysctl: map[string]string{}}
	for len(words) > 1 && strings.HasPrefix(words[0], "-") {
		switch flag, value := words[0], words[1]; {
		case flag == "--read-only":
			d.readOnly = true
			words = words[1:]
			continue
		case flag == "--cap-add" && value == "NET_ADMIN":
			d.noNetAdmin = false
		case flag == "--device" && value == "/dev/net/tun":
			d.noTun = false
		case flag == "--tmpfs":
			d.tmpfs = append(d.tmpfs, value)
		case flag == "--sysctl":
			name, setting, _ := strings.Cut(value, "=")
			d.sysctl[name] = setting
		default:
			t.Fatalf("README: docker run %s %s: this test does not know how runc does that", flag, value)
		}
		words = words[2:]
	}
	if len(words) == 0 || !strings.HasPrefix(words[0], "overlayd:") {
		t.Fatalf("README: docker run … %v: want the image and its arguments", words)
	}
	d.args = words[1:]
	return d
}

// TestShipImageRuns: README's line joins an overlay, in both dataplanes, with the root of the container read-only.
func TestShipImageRuns(t *testing.T) {
	l, manifests := openImage(t)
	bundle := l.unpack(t, manifests["amd64"])
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, strings.Replace(testNetwork, "{", `{"EnableNFTables":true,`, 1)) // there is no iptables in the image
			d := readmeRun(t)
			if !d.readOnly || !slices.Contains(d.args, c.url) {
				t.Fatalf("README's line: read-only %v, arguments %v; want the store %s", d.readOnly, d.args, c.url)
			}
			d.args = append(d.args, "--dataplane", mode)
			h := c.hosts[0]
			d.startIn(t, h, bundle)
			c.hosts[1].up("--dataplane", modeKernel)
			h.daemon.waitLog("msg=ready", patience)
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			checkPair(t, h, a, c.hosts[1], b, 1<<20)
			if log := h.daemon.text(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "no forward rules") {
				t.Errorf("the log:\n%s", log)
			}
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d at SIGTERM", code)
			}
		})
	}
}

// startIn starts the container of a bundle on host h.
func (d dockerRun) startIn(t *testing.T, h *host, bundle string) {
	t.Helper()
	var image specs.Spec // of the image's config
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		err = json.Unmarshal(b, &image)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := d.spec(t, h, append(image.Process.Args, d.args...), "")
	s.Root = &specs.Root{Path: filepath.Join(bundle, "rootfs"), Readonly: d.readOnly}
	s.Process.Env = image.Process.Env
	for name, value := range d.sysctl { // runc sets those of a network namespace only if it makes that itself, as Docker does
		h.Must(func() error { return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0) })
	}
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "bind" })
	for _, dir := range d.tmpfs {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: dir, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec"}})
	}
	own := t.TempDir()
	if b, err = json.Marshal(s); err == nil {
		err = os.WriteFile(filepath.Join(own, "config.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	id, state := fmt.Sprintf("overlayd-ship-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(own))), t.TempDir()
	h.daemon = startCommand(t, h.NS, h.name, exec.Command("runc", "--root", state, "run", "--bundle", own, id))
	t.Cleanup(func() { exec.Command("runc", "--root", state, "delete", "--force", id).Run() })
	eventually(t, patience, "the container runs", func() error {
		var c struct{ Pid int }
		out, err := exec.Command("runc", "--root", state, "state", id).Output()
		if err == nil {
			err = json.Unmarshal(out, &c)
		}
		if err == nil && c.Pid == 0 {
			err = fmt.Errorf("no process")
		}
		h.subnetFile = fmt.Sprintf("/proc/%d/root/run/flannel/subnet.env", c.Pid)
		return err
	})
}
