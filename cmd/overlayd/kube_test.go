//go:build kube

package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane"
)

// kubeCluster is a cluster whose leases are in a real kube-apiserver, on the etcd of the
// cluster. Host i is the Node host<i> with podCIDR 10.5.<i+1>.0/24.
type kubeCluster struct {
	*cluster
	server     *kubetest.Server
	client     kubernetes.Interface
	process    *process
	kubeconfig string
	netConf    string
}

const (
	kubeNetwork = `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`
	annotation  = "flannel.alpha.coreos.com/"
)

func newKubeCluster(t *testing.T, n int, config string) *kubeCluster {
	t.Helper()
	return newKubeClusterOn(t, []string{under4}, n, config)
}

// newKubeClusterOn is newKubeCluster with an underlay of these prefixes.
func newKubeClusterOn(t *testing.T, under []string, n int, config string) *kubeCluster {
	t.Helper()
	k := &kubeCluster{cluster: newClusterOn(t, under, n, ""), netConf: filepath.Join(t.TempDir(), "net-conf.json")}
	if err := os.WriteFile(k.netConf, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if k.server, err = kubetest.New(t.TempDir(), k.url, netip.MustParseAddrPort("192.0.2.1:6443")); err != nil {
		t.Fatal(err)
	}
	k.client, err = k.server.Client(func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = k.under.Do(func() error { conn, err = net.DialTimeout(network, addr, time.Second); return err })
		return conn, err
	})
	if err != nil {
		t.Fatal(err)
	}
	k.kubeconfig = k.server.Kubeconfig(t, "", "")
	k.startServer()
	return k
}

func (k *kubeCluster) startServer() {
	k.t.Helper()
	k.process = startCommand(k.t, k.under, "kube-apiserver", k.server.Command())
	if err := kubetest.WaitReady(k.client); err != nil {
		k.t.Fatal(err)
	}
}

// node makes the Node of host i.
func (k *kubeCluster) node(i int, annotations map[string]string) {
	k.t.Helper()
	kubetest.Create(k.t, k.client, kubetest.NewNode(k.hosts[i].name, annotations, fmt.Sprintf("10.5.%d.0/24", i+1)))
}

// start starts overlayd on host i in Kubernetes mode.
func (k *kubeCluster) start(i int, args ...string) *process {
	k.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		k.t.Fatal(err)
	}
	return k.startBinary(exe, i, args...)
}

func (k *kubeCluster) startBinary(exe string, i int, args ...string) *process {
	k.t.Helper()
	h := k.hosts[i]
	cmd := exec.Command(exe, append([]string{"--kube-subnet-mgr", "--kubeconfig-file", k.kubeconfig,
		"--net-config-path", k.netConf, "--subnet-file", h.subnetFile}, args...)...)
	cmd.Env = append(h.c.env(), asOverlayd+"=1", "NODE_NAME="+h.name)
	h.daemon = startCommand(k.t, h.NS, h.name, cmd)
	return h.daemon
}

func (k *kubeCluster) up(i int, args ...string) {
	k.t.Helper()
	k.start(i, args...).waitLog("msg=ready", patience)
}

// TestKubeCluster: three Nodes, both dataplanes; the API server is stopped for a while under
// traffic (what is promised is OVERLAYD_TEST_OUTAGE=60s), and a Node joins meanwhile.
func TestKubeCluster(t *testing.T) {
	const soon = 2 * time.Second
	away := durationFrom(t, "OVERLAYD_TEST_OUTAGE", 15*time.Second)
	k := newKubeCluster(t, 3, kubeNetwork)
	for i := range 3 {
		k.node(i, nil)
	}
	k.up(0, "--dataplane", modeKernel)
	k.up(1, "--dataplane", modeUserspace)
	for i := range 2 {
		k.checkNode(i)
	}
	a, b := k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)

	k.process.stop(unix.SIGKILL)
	k.start(2, "--dataplane", modeKernel)
	time.Sleep(away) // the outage itself
	if there.sent.Load() < 1000 {
		t.Errorf("%d datagrams sent", there.sent.Load())
	}
	k.startServer()
	returned := time.Now()
	k.hosts[2].daemon.waitLog("msg=ready", soon)
	c := k.hosts[2].pod(0, 0)
	for _, p := range []*pod{a, b} {
		eventually(t, time.Until(returned.Add(soon)), "the third host's pod answers", func() error { return echoWithin(p.NS, c.addr, 56, 50*time.Millisecond) })
	}
	t.Logf("the Node that joined meanwhile was reached %s after the return", time.Since(returned))
	k.checkNode(2)
	waitTraffic(t, there, 500)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
}

// facts is what a daemon with a --dataplane flag publishes of its host beside what flanneld would.
func (h *host) facts() string {
	if slices.Contains(h.daemon.cmd.Args, modeUserspace) {
		return `{"v":1,"userspace":true}`
	}
	return `{"v":1}`
}

// checkNode wants of host i what flanneld would have written, overlayd's own annotation, and its podCIDR in the subnet file.
func (k *kubeCluster) checkNode(i int) {
	k.t.Helper()
	h := k.hosts[i]
	want := map[string]string{
		annotation + "kube-subnet-manager": "true",
		annotation + "backend-type":        "vxlan",
		annotation + "backend-data":        `{"VNI":1,"VtepMAC":"` + dataplane.MAC(h.addr, 1).String() + `"}`,
		annotation + "public-ip":           h.addr.String(),
		annotation + "overlayd-node":       h.facts(),
	}
	node := kubetest.Get(k.t, k.client, h.name)
	if !maps.Equal(node.Annotations, want) {
		k.t.Errorf("annotations of %s are %q, want %q", h.name, node.Annotations, want)
	}
	if got, want := h.gateway().Masked().String(), node.Spec.PodCIDR; got != want {
		k.t.Errorf("subnet of %s is %s, want %s", h.name, got, want)
	}
	eventually(k.t, patience, "condition NetworkUnavailable", func() error {
		for _, c := range kubetest.Get(k.t, k.client, h.name).Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse && c.Reason == "FlannelIsUp" {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", node.Status.Conditions)
	})
}

// TestKubeNodeLater: the daemon waits for its Node and then for the podCIDR, says so, and
// takes the address that the Node's annotation gives.
func TestKubeNodeLater(t *testing.T) {
	k := newKubeCluster(t, 1, kubeNetwork)
	h := k.hosts[0]
	h.Addr("eth0", "192.0.2.200/24")
	k.start(0, "--dataplane", modeUserspace)
	h.daemon.waitLog(`nodes \"host0\" not found`, patience)
	kubetest.Create(t, k.client, kubetest.NewNode(h.name, map[string]string{annotation + "node-public-ip": "192.0.2.200"}))
	h.daemon.waitLog("pod cidr not assigned", patience)
	node := kubetest.Get(t, k.client, h.name)
	node.Spec.PodCIDR, node.Spec.PodCIDRs = "10.5.7.0/26", []string{"10.5.7.0/26"}
	if _, err := k.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.daemon.waitLog("msg=ready", patience)
	if got := kubetest.Get(t, k.client, h.name).Annotations[annotation+"public-ip"]; got != "192.0.2.200" {
		t.Errorf("public-ip is %q", got)
	}
	if got := h.gateway().String(); got != "10.5.7.1/26" {
		t.Errorf("gateway %s", got)
	}
}

// TestKubeDrain: without a daemon, too, a Node's lease is given back, under whatever address; the
// daemon says what is wrong with its config file and goes on.
func TestKubeDrain(t *testing.T) {
	k := newKubeCluster(t, 1, kubeNetwork)
	k.node(0, map[string]string{annotation + "public-ip-overwrite": "203.0.113.9"})
	k.up(0, "--dataplane", modeUserspace)
	if got := kubetest.Get(t, k.client, "host0").Annotations[annotation+"public-ip"]; got != "203.0.113.9" {
		t.Fatalf("public-ip is %q", got)
	}
	if err := os.WriteFile(k.netConf, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.hosts[0].daemon.waitLog("network config is not usable: keeping the last one", patience)
	if n := linesWith(k.hosts[0].daemon.text(), "session ended"); n > 0 {
		t.Errorf("the session has ended:\n%s", k.hosts[0].daemon.text())
	}
	k.hosts[0].daemon.stop(unix.SIGKILL)
	for _, says := range []string{"10.5.1.0/24 given back", "nothing to give back"} {
		p := k.startDrain(0)
		if code := p.wait(patience); code != 0 || !strings.Contains(p.text(), says) {
			t.Errorf("exit code %d, want %q:\n%s", code, says, p.text())
		}
	}
	if a := kubetest.Get(t, k.client, "host0").Annotations; len(a) != 1 {
		t.Errorf("annotations %v are left", a)
	}
}

// startDrain starts overlayd drain on host i.
func (k *kubeCluster) startDrain(i int) *process {
	k.t.Helper()
	h := k.hosts[i]
	return h.overlaydWith([]string{"NODE_NAME=" + h.name}, "drain", "--kube-subnet-mgr",
		"--kubeconfig-file", k.kubeconfig, "--net-config-path", k.netConf, "--subnet-file", h.subnetFile)
}

// TestKubeNodeReplaced: the Node is made again, first as it was and then with another podCIDR.
func TestKubeNodeReplaced(t *testing.T) {
	k := newKubeCluster(t, 2, kubeNetwork)
	k.node(0, nil)
	k.node(1, nil)
	k.up(0, "--dataplane", modeKernel)
	k.up(1, "--dataplane", modeKernel)
	kubetest.Delete(t, k.client, "host1")
	k.node(1, nil)
	eventually(t, patience, "the annotations are back", func() error {
		if a := kubetest.Get(t, k.client, "host1").Annotations; a[annotation+"kube-subnet-manager"] != "true" {
			return fmt.Errorf("annotations %v", a)
		}
		return nil
	})
	k.checkNode(1)
	kubetest.Delete(t, k.client, "host1")
	kubetest.Create(t, k.client, kubetest.NewNode("host1", nil, "10.5.77.0/24"))
	eventually(t, patience, "the other podCIDR", func() error {
		if got := k.hosts[1].gateway().String(); got != "10.5.77.1/24" {
			return fmt.Errorf("gateway %s", got)
		}
		return nil
	})
	warmUp(t, k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0))
}

// TestKubeScale: 5000 Nodes of the size of real ones, read at the start and, by a daemon that
// knows them, again after the API server has forgotten what it had sent.
func TestKubeScale(t *testing.T) {
	const nodes, memory, limit = 5000, 85_000_000 >> 10, 3 * time.Second
	binary := staticBinary(t)
	k := newKubeCluster(t, 1, `{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}`)
	h := k.hosts[0]
	kubetest.Fill(t, k.client, nodes)
	kubetest.Create(t, k.client, kubetest.NewNode(h.name, nil, "10.250.0.0/24"))
	for i, mode := range []string{modeUserspace, modeKernel} {
		t.Run(mode, func(t *testing.T) {
			began := now(t)
			k.startBinary(binary, 0, "--dataplane", mode)
			h.daemon.waitLog("msg=ready", 4*limit)
			took, first := began.passed(t), residentPeak(t, h.daemon)
			k.forget()
			late := kubetest.NewNode("late-"+mode, kubetest.Get(t, k.client, "node-0").Annotations, fmt.Sprintf("10.251.%d.0/24", i))
			late.Annotations[annotation+"public-ip"] = fmt.Sprintf("172.17.0.%d", i)
			late.Annotations[annotation+"backend-data"] = fmt.Sprintf(`{"VNI":1,"VtepMAC":"0e:2a:f2:00:00:%02x"}`, i)
			kubetest.Create(t, k.client, late)
			if mode == modeKernel {
				eventually(t, limit, "all routes in the kernel", func() error { return routes(h, nodes+2) })
			}
			again := residentPeak(t, h.daemon)
			t.Logf("ready after %s with %d KiB, %d KiB after another list", took, first, again)
			if took > limit || again > memory {
				t.Errorf("want ready after at most %s, and at most %d KiB", limit, memory)
			}
			h.daemon.stop(unix.SIGTERM)
			if err := h.Do(func() error {
				return leftovers.Cleanup{SubnetFiles: []string{h.subnetFile}}.Run(t.Context(), func(string) {})
			}); err != nil {
				t.Errorf("cleanup: %v", err)
			}
		})
	}
}

// forget compacts etcd and restarts the API server, so that watches from before it are
// answered with 410 Gone.
func (k *kubeCluster) forget() {
	k.t.Helper()
	r, err := k.cluster.client.Get(k.t.Context(), "x")
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.cluster.client.Compact(k.t.Context(), r.Header.Revision); err != nil {
		k.t.Fatal(err)
	}
	k.process.stop(unix.SIGKILL)
	k.startServer()
}

// residentPeak returns the greatest resident memory of a process, in KiB.
func residentPeak(t *testing.T, p *process) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmHWM: %d", &kib)
	}
	return kib
}

// TestKubeDual: a dual-stack cluster on a dual-stack underlay, both dataplanes.
func TestKubeDual(t *testing.T) {
	k := newKubeClusterOn(t, []string{under4, under6}, 2,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:5::/48","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	for i, mode := range []string{modeKernel, modeUserspace} {
		h := k.hosts[i]
		kubetest.Create(t, k.client, kubetest.NewNode(h.name, nil, fmt.Sprintf("10.5.%d.0/24", i+1), fmt.Sprintf("fd10:5:0:%d::/64", i+1)))
		k.up(i, "--dataplane", mode)
		want := map[string]string{
			annotation + "kube-subnet-manager": "true",
			annotation + "backend-type":        "vxlan",
			annotation + "backend-data":        `{"VNI":1,"VtepMAC":"` + dataplane.MAC(h.addrs[0], 1).String() + `"}`,
			annotation + "public-ip":           h.addrs[0].String(),
			annotation + "backend-v6-data":     `{"VNI":1,"VtepMAC":"` + dataplane.MAC(h.addrs[1], 1).String() + `"}`,
			annotation + "public-ipv6":         h.addrs[1].String(),
			annotation + "overlayd-node":       h.facts(),
		}
		if got := kubetest.Get(t, k.client, h.name).Annotations; !maps.Equal(got, want) {
			t.Errorf("annotations of %s are %q, want %q", h.name, got, want)
		}
	}
	a, b := k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0)
	for _, to := range b.addrs {
		eventually(t, patience, to.String(), func() error { return echoWithin(a.NS, to, 1000, 200*time.Millisecond) })
	}
	if len(b.addrs) != 2 {
		t.Errorf("pod has %v", b.addrs)
	}
}

// TestKubePartition: the API server cannot be reached and says nothing, so that only the
// client can find out, whether or not it waits for an answer; a Node that joins meanwhile is
// reached soon after.
func TestKubePartition(t *testing.T) {
	const away, soon = 20 * time.Second, 2 * time.Second
	k := newKubeCluster(t, 2, kubeNetwork)
	k.node(0, nil)
	k.up(0, "--dataplane", modeKernel)
	k.under.Run("nft", `add table inet cut
		add chain inet cut in { type filter hook input priority 0; }
		add chain inet cut out { type filter hook output priority 0; }
		add rule inet cut in iifname != "lo" tcp dport 6443 drop
		add rule inet cut out oifname != "lo" tcp sport 6443 drop`)
	kubetest.Create(t, k.client, kubetest.NewNode("joined", map[string]string{
		annotation + "kube-subnet-manager": "true", annotation + "backend-type": "vxlan",
		annotation + "public-ip": "192.0.2.77", annotation + "backend-data": `{"VNI":1,"VtepMAC":"0e:2a:00:00:00:77"}`,
	}, "10.5.77.0/24"))
	time.Sleep(away) // the outage itself
	if err := routes(k.hosts[0], 0); err != nil {
		t.Fatalf("the Node was seen through the partition: %v", err)
	}
	k.under.Run("nft", "delete table inet cut")
	began := time.Now()
	eventually(t, soon, "route to the Node that joined", func() error { return routes(k.hosts[0], 1) })
	t.Logf("routed %s after the return", time.Since(began))
}

// TestKubeSourceOfNATedNode: a Node whose public IP is overwritten by one that its packets do not come from reaches the
// pods of the userspace dataplane, and is reached.
func TestKubeSourceOfNATedNode(t *testing.T) {
	k := newKubeCluster(t, 1, kubeNetwork)
	h := k.behindDNAT("192.0.2.101")
	k.node(0, nil)
	k.node(1, map[string]string{annotation + "public-ip-overwrite": "192.0.2.101"})
	k.up(0, "--dataplane", modeUserspace)
	k.up(1, "--dataplane", modeKernel)
	if got := kubetest.Get(t, k.client, h.name).Annotations[annotation+"overlayd-node"]; got != `{"v":1,"src4":"172.31.0.2"}` {
		t.Errorf("the node says %s", got)
	}
	a, b := k.hosts[0].pod(0, 0), h.pod(0, 0)
	warmUp(t, a, b)
	checkPair(t, k.hosts[0], a, h, b, 4<<20)
}
