//go:build flannel && kube

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// TestKubeMoveFromFlannel: the commands of docs/from-flannel.md for Kubernetes, with the objects of kube-flannel.yml and those of
// deploy/kubernetes, on a real API server. The test is what it has not: kubelet and the controller of DaemonSets. Of 100 datagrams a
// second in three directions none is lost, with userspace hardly any, and then host and Node are as before.
func TestKubeMoveFromFlannel(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			k := newKubeCluster(t, 3, testNetwork)
			m := &move{k, t, mode, map[*host]string{}}
			for i, h := range k.hosts {
				n := kubetest.NewNode(h.name, map[string]string{"node.alpha.kubernetes.io/ttl": "0"}, "10.244."+string(rune('1'+i))+".0/24")
				n.Labels = map[string]string{"kubernetes.io/os": "linux"}
				kubetest.Create(t, k.client, n)
			}
			m.kubectl("kubectl apply -f " + kubeFlannel(t))
			m.reconcile()
			m.goAndReturn()
		})
	}
}

// kubeFlannel returns the manifest of the flanneld that the tests run.
func kubeFlannel(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/flannel-io/flannel")
	cmd.Dir = "../../bench/peers/flanneld"
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(module.Dir, "Documentation/kube-flannel.yml")
}

// move is a cluster whose Nodes go from flannel to overlayd and back.
type move struct {
	*kubeCluster
	t    *testing.T
	mode string
	runs map[*host]string // the DaemonSet of the pod on a host
}

// kubectl runs a command where it reaches the API server, in the top folder of the module.
func (m *move) kubectl(command string) {
	m.t.Helper()
	cmd := exec.Command("sh", "-euc", command)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "KUBECONFIG="+m.kubeconfig)
	var out []byte
	if err := m.under.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }); err != nil {
		m.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// goAndReturn runs the commands of the page, while a pod of host0 talks with those of two others.
func (m *move) goAndReturn() {
	m.t.Helper()
	h := &back{m.hosts[0], m.t, m.mode, nil, nil}
	a, p, q := h.pod(0, 0), m.hosts[1].pod(0, 0), m.hosts[2].pod(0, 0)
	warmUp(m.t, a, p)
	warmUp(m.t, a, q)
	host, node := h.comparable(), m.annotations(h.host)
	var meters []*meter
	for _, way := range [][2]*pod{{a, p}, {p, a}, {q, a}} {
		one, err := startMeter(way[0].NS, way[1].NS, way[1].addr, pace100)
		if err != nil {
			m.t.Fatal(err)
		}
		meters = append(meters, one)
	}
	commands := documented(m.t, "docs/from-flannel.md", "TestKubeMoveFromFlannel")
	if len(commands) != 8 {
		m.t.Fatalf("docs/from-flannel.md has the commands %q", commands)
	}
	for _, command := range commands {
		if m.mode == modeUserspace && strings.HasSuffix(command, "overlayd=no") && m.runs[h.host] == "overlayd" {
			m.drain(h.host)
		}
		m.kubectl(command)
		m.reconcile()
		for _, one := range meters {
			waitTraffic(m.t, one, 30)
		}
	}
	limit := mayLose(modeFlanneld, m.mode) + mayLose(m.mode, modeFlanneld)
	for i, one := range meters {
		lost := one.finish()
		m.t.Logf("direction %d: %d of %d lost, longest gap %s", i, lost, one.sent.Load(), time.Duration(one.gap.Load()))
		if lost > limit {
			m.t.Errorf("direction %d: %d of %d lost, want at most %d", i, lost, one.sent.Load(), limit)
		}
	}
	if diff := cmp.Diff(node, m.annotations(h.host)); diff != "" {
		m.t.Errorf("the Node after the way back (-only ever flannel +now):\n%s", diff)
	}
	if diff := cmp.Diff(strings.Split(host, "\n"), strings.Split(h.comparable(), "\n")); diff != "" {
		m.t.Errorf("the host after the way back (-only ever flannel +now):\n%s", diff)
	}
}

// reconcile ends the pods of Nodes that their DaemonSet no longer selects, and then starts those that are missing.
func (m *move) reconcile() {
	m.t.Helper()
	var sets []appsv1.DaemonSet
	for _, name := range [][2]string{{"kube-flannel", "kube-flannel-ds"}, {"overlayd", "overlayd"}, {"kube-system", "overlayd-cleanup"}} {
		set, err := m.client.AppsV1().DaemonSets(name[0]).Get(m.t.Context(), name[1], metav1.GetOptions{})
		switch {
		case err == nil:
			sets = append(sets, *set)
		case !apierrors.IsNotFound(err):
			m.t.Fatal(err)
		}
	}
	for i, h := range m.hosts {
		n := kubetest.Get(m.t, m.client, h.name)
		wanted := ""
		for _, s := range sets {
			switch {
			case !selects(m.t, &s, n):
			case s.Name == "overlayd-cleanup":
				m.cleanup(h, s.Spec.Template.Spec.InitContainers[0].Command)
			case wanted != "":
				m.t.Fatalf("%s is %s's and %s's", h.name, wanted, s.Name)
			default:
				wanted = s.Name
			}
		}
		if wanted == m.runs[h] {
			continue
		}
		if m.runs[h] != "" {
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				m.t.Errorf("%s ended with %d", m.runs[h], code)
			}
		}
		m.start(i, wanted)
	}
}

// start starts the daemon of a pod, and waits until it is ready.
func (m *move) start(i int, set string) {
	m.t.Helper()
	h := m.hosts[i]
	if m.runs[h] = set; set == "overlayd" {
		m.asPod(i, m.token(set, "overlayd", h), "--dataplane="+m.mode).waitLog("msg=ready", patience)
		return
	}
	conf, err := m.client.CoreV1().ConfigMaps("kube-flannel").Get(m.t.Context(), "kube-flannel-cfg", metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	file := filepath.Join(m.t.TempDir(), "net-conf.json")
	if err := os.WriteFile(file, []byte(conf.Data["net-conf.json"]), 0o600); err != nil {
		m.t.Fatal(err)
	}
	flags := m.daemonSet("kube-flannel", set).Spec.Template.Spec.Containers[0].Args
	h.flanneldWith([]string{"NODE_NAME=" + h.name}, append(slices.Clone(flags), "-kubeconfig-file", m.server.Kubeconfig(m.t, "", m.token("kube-flannel", "flannel", h)), "-net-config-path", file)...)
	h.daemon.waitLog("watching for new subnet leases", patience)
}

// token returns one of a new pod.
func (m *move) token(namespace, account string, h *host) string {
	m.t.Helper()
	pods := m.client.CoreV1().Pods(namespace)
	if err := pods.Delete(m.t.Context(), account+"-"+h.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
		m.t.Fatal(err)
	}
	return kubetest.TokenOn(m.t, m.client, namespace, account, h.name)
}

// drain is the command of the page for a pod of the userspace dataplane.
func (m *move) drain(h *host) {
	m.t.Helper()
	drain := h.overlaydWith([]string{"PATH=/nonexistent"}, "drain", "--to=kernel", "--subnet-file", h.subnetFile)
	if code := drain.wait(patience); code != 0 {
		m.t.Errorf("drain --to=kernel: exit code %d: %s", code, drain.text())
	}
	h.daemon.waitLog("the kernel forwards: standing by", patience)
}

// cleanup runs the command of the pod of deploy/kubernetes/cleanup.yml.
func (m *move) cleanup(h *host, command []string) {
	m.t.Helper()
	if p := h.overlaydWith([]string{"PATH=/nonexistent"}, append(slices.Clone(command[1:]), "--subnet-file", h.subnetFile)...); p.wait(patience) != 0 {
		m.t.Errorf("%q: %s", command, p.text())
	}
}

// selects reports whether a DaemonSet has a pod on a Node.
func selects(t *testing.T, s *appsv1.DaemonSet, n *corev1.Node) bool {
	t.Helper()
	spec := s.Spec.Template.Spec
	has := labels.Set(n.Labels)
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(has) {
		return false
	}
	if spec.Affinity == nil {
		return true
	}
	operators := map[corev1.NodeSelectorOperator]selection.Operator{corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn}
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil {
				t.Fatal(err)
			}
			return !r.Matches(has)
		})
	})
}
