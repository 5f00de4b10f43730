package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// cniProgram builds the CNI plugin as a release has it, and returns its path.
var cniProgram = built("overlayd-cni", "../overlayd-cni")

// cniTool builds cnitool: a container runtime by the library that most of them use. The test binary as cnitool takes a second for each
// command with the race detector.
var cniTool = built("cnitool", "github.com/containernetworking/cni/cnitool")

// built returns what builds a program once, and returns its path.
func built(name, pkg string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		path := filepath.Join(os.Getenv(scratch), name)
		out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, pkg).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return path, err
	})
}

// cniRuntime is a container runtime on a host: cnitool, and directories of its own.
type cniRuntime struct {
	*host
	network                string // libcni has one cache for all hosts of this machine, by its name
	plugin                 string // the type in the configs
	bin, confs, data, ipam string
	more                   string // keys of the plugin's config
}

func (h *host) cniRuntime() *cniRuntime {
	h.c.t.Helper()
	program, err := cniProgram()
	if err != nil {
		h.c.t.Fatal(err)
	}
	t := h.c.t
	r := &cniRuntime{host: h, network: fmt.Sprintf("test-%d", rand.Uint64()), plugin: "overlayd-cni", bin: t.TempDir(), confs: t.TempDir(), data: t.TempDir(), ipam: t.TempDir(),
		more: `,"delegate":{"isDefaultGateway":true,"hairpinMode":true}`}
	for _, name := range []string{"overlayd-cni", "flannel"} {
		if err := os.Symlink(program, filepath.Join(r.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// tool runs cnitool with the config in version v. bin: where the plugin is.
func (r *cniRuntime) tool(v, bin, command string, ns *netnstest.NS) ([]byte, error) {
	r.c.t.Helper()
	dir := filepath.Join(r.confs, v)
	more := r.more
	if command == "gc" {
		more += `,"cni.dev/valid-attachments":[]` // cnitool itself gives no list
	}
	conf := fmt.Sprintf(`{"name":%q,"cniVersion":%q,"plugins":[{"type":%q,"subnetFile":%q,"dataDir":%q,"ipam":{"dataDir":%q}%s}]}`,
		r.network, v, r.plugin, r.subnetFile, r.data, r.ipam, more)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10-test.conflist"), []byte(conf), 0o644); err != nil {
		r.c.t.Fatal(err)
	}
	program, err := cniTool()
	if err != nil {
		r.c.t.Fatal(err)
	}
	cmd := exec.Command(program, command, r.network, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Handle()))
	cmd.Env = append(r.c.env(), "NETCONFPATH="+dir, "CNI_PATH="+bin+":"+cniDir)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := r.Do(cmd.Run); err != nil {
		return nil, fmt.Errorf("cnitool %s %s: %w: %s%s", command, v, err, said.String(), out.String())
	}
	return []byte(out.String()), nil
}

// must is tool that has to succeed.
func (r *cniRuntime) must(v, command string, ns *netnstest.NS) []byte {
	r.c.t.Helper()
	out, err := r.tool(v, r.bin, command, ns)
	if err != nil {
		r.c.t.Fatal(err)
	}
	return out
}

// pod makes a pod, with what its result says.
func (r *cniRuntime) pod(v, bin string) *pod {
	r.c.t.Helper()
	p := &pod{NS: netnstest.New(r.c.t)}
	out, err := r.tool(v, bin, "add", p.NS)
	if err != nil {
		r.c.t.Fatal(err)
	}
	var head struct{ CNIVersion string }
	if err := json.Unmarshal(out, &head); err != nil || head.CNIVersion != v {
		r.c.t.Fatalf("result of version %q (%v), want %s:\n%s", head.CNIVersion, err, v, out)
	}
	result, err := cniversion.NewResult(v, out)
	if err != nil {
		r.c.t.Fatal(err)
	}
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		r.c.t.Fatal(err)
	}
	for i, gw := range r.gateways() {
		if len(current.IPs) <= i {
			r.c.t.Fatalf("addresses %v, want one in %s", current.IPs, gw.Masked())
		}
		addr, _ := netip.AddrFromSlice(current.IPs[i].Address.IP)
		if addr = addr.Unmap(); !gw.Masked().Contains(addr) {
			r.c.t.Fatalf("address %s, want one in %s", addr, gw.Masked())
		}
		p.addrs = append(p.addrs, addr)
	}
	p.addr = p.addrs[0]
	return p
}

// checkLeft wants that nothing is left of any pod.
func (r *cniRuntime) checkLeft(when string) {
	r.c.t.Helper()
	addresses, err := filepath.Glob(filepath.Join(r.ipam, r.network, "*[.:]*"))
	if err != nil {
		r.c.t.Fatal(err)
	}
	addresses = slices.DeleteFunc(addresses, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "last_reserved_ip") })
	saved, err := os.ReadDir(r.data)
	if err != nil {
		r.c.t.Fatal(err)
	}
	links := r.Run("ip", "-brief", "link", "show", "master", "cni0")
	if len(addresses)+len(saved) > 0 || links != "" {
		r.c.t.Errorf("%s, %s: left: addresses %v, saved configs %v, links %s", r.name, when, addresses, saved, links)
	}
}

// cniVersions are those of the configs that container runtimes have.
var cniVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// checkRuntime makes, checks and deletes pods in every version; each reaches a pod of another host, and is reached.
func checkRuntime(r *cniRuntime, far *pod) {
	t := r.c.t
	t.Helper()
	for _, v := range cniVersions {
		p := r.pod(v, r.bin)
		warmUp(t, p, far)
		warmUp(t, far, p)
		if v == "0.3.1" {
			if _, err := r.tool(v, r.bin, "check", p.NS); err == nil {
				t.Error("CHECK at 0.3.1, which knows none")
			}
		} else {
			r.must(v, "check", p.NS)
		}
		r.must(v, "status", p.NS)
		r.must(v, "del", p.NS)
		r.must(v, "del", p.NS)
		r.checkLeft("DEL at " + v)

		lost := r.pod(v, r.bin)
		r.must(v, "gc", lost.NS)
		r.checkLeft("GC at " + v)
	}
	// What the runtime does not remember, the plugin does.
	lost := r.pod("1.1.0", r.bin)
	cached, err := filepath.Glob("/var/lib/cni/results/" + r.network + "-*")
	if err != nil || len(cached) != 1 {
		t.Fatalf("cnitool's cache: %v, %v", cached, err)
	}
	if err := os.Remove(cached[0]); err != nil {
		t.Fatal(err)
	}
	r.must("1.1.0", "gc", lost.NS)
	r.checkLeft("GC of what the runtime forgot")
}

// TestCNITool: a container runtime gets pods of the plugin on hosts with either dataplane, in every version of CNI, and
// hears from STATUS when the daemon is not ready.
func TestCNITool(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, []string{under4, under6}, 2, dualNetwork)
	modes := []string{modeKernel, modeUserspace}
	runtimes, far := [2]*cniRuntime{}, [2]*pod{}
	for i, h := range c.hosts {
		runtimes[i] = h.cniRuntime()
		before := netnstest.New(t)
		if _, err := runtimes[i].tool("1.1.0", runtimes[i].bin, "status", before); err == nil || !strings.Contains(err.Error(), "subnet.env: no such file or directory") {
			t.Errorf("STATUS before the daemon: %v", err)
		}
		if _, err := runtimes[i].tool("1.1.0", runtimes[i].bin, "add", before); err == nil || !strings.Contains(err.Error(), "subnet.env: no such file or directory") {
			t.Errorf("ADD before the daemon: %v", err)
		}
		h.up("--dataplane", modes[i], "--ip-masq")
		far[i] = runtimes[i].pod("1.0.0", runtimes[i].bin)
	}
	for i, r := range runtimes {
		peer := runtimes[1-i]
		r.must("1.0.0", "del", far[i].NS)
		checkRuntime(r, far[1-i])
		far[i] = r.pod("1.0.0", r.bin)
		peer.must("1.0.0", "check", far[1-i].NS)
	}
	for i, r := range runtimes {
		r.must("1.0.0", "del", far[i].NS)
		r.checkLeft("at the end")
	}
}
