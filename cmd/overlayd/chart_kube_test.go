//go:build kube

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube/kubetest"
)

const chart = "../../deploy/chart"

// helm runs the Helm that `make test-kube` builds, and returns what it prints.
func helm(t *testing.T, run func(*exec.Cmd) ([]byte, error), args ...string) (string, error) {
	t.Helper()
	binary := os.Getenv("OVERLAYD_HELM")
	if binary == "" {
		t.Fatal("OVERLAYD_HELM is not set: run make test-kube")
	}
	out, err := run(exec.Command(binary, args...))
	return string(out), err
}

// template renders the chart for a version of Kubernetes.
func template(t *testing.T, version string, args ...string) (string, error) {
	t.Helper()
	return helm(t, (*exec.Cmd).CombinedOutput, append([]string{"template", "overlayd", chart, "--namespace", "overlayd", "--kube-version", version,
		"--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, args...)...)
}

// flannelValues are those of flannel's chart of v0.28.9, with values other than the defaults if it has any.
const flannelValues = `
global:
  imagePullSecrets:
podCidr: "10.5.0.0/16"
podCidrv6: "fd10:5::/48"
flannel:
  image: {repository: ghcr.io/flannel-io/flannel, tag: v0.28.9}
  flannel_cni: {image: {repository: ghcr.io/flannel-io/flannel-cni-plugin, tag: v1.9.1-flannel2}}
  cniBinDir: "/var/lib/rancher/k3s/data/cni"
  cniConfDir: "/var/lib/rancher/k3s/agent/etc/cni/net.d"
  skipCNIConfigInstallation: false
  enableNFTables: false
  args: ["--ip-masq", "--kube-subnet-mgr", "--kube-annotation-prefix=example.com/x"]
  backend: "vxlan"
  backendPort: 8473
  mtu: 1400
  vni: 7
  GBP: false
  directRouting: true
  macPrefix: "0E-2A"
  cniConf: |
    {"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}]}
  resources: {requests: {cpu: 100m, memory: 50Mi}}
  healthz: {port: 8082, livenessProbe: {initialDelaySeconds: 10, periodSeconds: 30}, readinessProbe: {initialDelaySeconds: 5, periodSeconds: 10}}
  tolerations: [{effect: NoExecute, operator: Exists}, {effect: NoSchedule, operator: Exists}]
  nodeSelector: {}
netpol: {enabled: false, args: ["--v=2"], image: {repository: registry.k8s.io/networking/kube-network-policies, tag: v1.0.0}}
`

// TestKubeChartRenders: without a cluster. The manifest is the chart of today; flannel's values mean what they mean there; an unknown key, and
// what overlayd does not serve, is refused by its name.
func TestKubeChartRenders(t *testing.T) {
	t.Parallel()
	if out, err := helm(t, (*exec.Cmd).CombinedOutput, "lint", "--strict", chart); err != nil {
		t.Errorf("lint: %v\n%s", err, out)
	}
	head, err := os.ReadFile("../../deploy/kubernetes/head.yml")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("../../deploy/kubernetes/overlayd.yml")
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := template(t, "1.37.2")
	if diff := cmp.Diff(string(manifest), string(head)+rendered); diff != "" || err != nil {
		t.Errorf("deploy/kubernetes/overlayd.yml is not the chart of today: run make manifest (-is +should): %v\n%s", err, diff)
	}
	for _, c := range []struct {
		version string
		args    []string
		has     string
		absent  string
	}{
		{"1.31.0", nil, "DaemonSet", "ValidatingAdmissionPolicy"},
		{"1.32.0", nil, "ValidatingAdmissionPolicy", "PodMonitor"},
		{"1.37.2", []string{"--set", "admissionPolicy=false"}, "DaemonSet", "ValidatingAdmissionPolicy"},
		{"1.31.0", []string{"--set", "admissionPolicy=true"}, "ValidatingAdmissionPolicy", "PodMonitor"},
		{"1.37.2", []string{"--set", "podMonitor.enabled=true"}, "kind: PodMonitor", "metrics-port=0"},
		{"1.37.2", []string{"--set", "podMonitor.enabled=true"}, "--metrics-port=9799", "containerPort"},
		{"1.37.2", []string{"--set", "tun=false"}, "DaemonSet", "/dev/net/tun"},
		{"1.37.2", []string{"--set", "events=false"}, "DaemonSet", "overlayd-events"},
		{"1.37.2", []string{"--set", "flannel.skipCNIConfigInstallation=true"}, "- --cni-conf-out=\n", "10-flannel.conflist"},
		{"1.37.2", []string{"--set", "podCidr=,podCidrv6=fd00::/48,podLabels.a=b"}, "EnableIPv4", "10.244.0.0"},
		{"1.37.2", []string{"--set", "image=registry.example.com/x:y"}, "image: registry.example.com/x:y", "ghcr.io"},
	} {
		if out, err := template(t, c.version, c.args...); err != nil || !strings.Contains(out, c.has) || strings.Contains(out, c.absent) {
			t.Errorf("%s %q: want %q and no %q, %v", c.version, c.args, c.has, c.absent, err)
		}
	}
	for _, c := range []struct{ set, says string }{
		{"podCIDR=10.5.0.0/16", "podCIDR"}, {"flannel.cniBinDirectory=/x", "cniBinDirectory"}, {"flannel.backend=wireguard", "backend"}, {"netpol.enabled=true", "netpol"},
		{"podMonitor.intervall=3s", "intervall"}, {"dataplane=dpdk", "dataplane"},
		{"podCidr=", "podCidr and podCidrv6 are both empty"}, {"podCidr=999.1.1.1/99", "podCidr"}, {"podCidr=10.5.0.0/33", "podCidr"}, {"podCidrv6=fd00::/129", "podCidrv6"},
		{"metrics.port=8081", "metrics.port 8081 is flannel.healthz.port too"}, {"podMonitor.enabled=true,flannel.healthz.port=9799", "metrics.port 9799"},
		{"dataplane=userspace,tun=false", "tun=false"}, {"flannel.cniConf=xx", `flannel.cniConf "xx": want a list`}, {"flannel.cniConf=null", "cniConf"},
	} {
		if out, err := template(t, "1.37.2", "--set", c.set); err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: want an error that names %s: %v\n%s", c.set, c.says, err, out)
		}
	}
	checkFlannelValues(t)
}

// checkFlannelValues renders the chart with flannel's values.
func checkFlannelValues(t *testing.T) {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(flannelValues), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := template(t, "1.37.2", "-f", values)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var conf corev1.ConfigMap
	var set appsv1.DaemonSet
	for doc := range strings.SplitSeq(out, "\n---\n") {
		switch {
		case strings.Contains(doc, "\nkind: ConfigMap"):
			err = yaml.UnmarshalStrict([]byte(doc), &conf)
		case strings.Contains(doc, "\nkind: DaemonSet"):
			err = yaml.UnmarshalStrict([]byte(doc), &set)
		case strings.Contains(doc, "\nkind: ValidatingAdmissionPolicy\n") && !strings.Contains(doc, "'example.com/x-' + k"):
			t.Error("the policy does not know the prefix of the annotations")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := control.ParsePodNetwork([]byte(conf.Data["net-conf.json"]))
	if err != nil || !n.EnableIPv4 || !n.EnableIPv6 || n.Backend.Port != 8473 || n.Backend.MTU != 1400 || n.Backend.VNI != 7 || !n.Backend.DirectRouting || n.Backend.GBP {
		t.Errorf("network config %s: %+v, %v", conf.Data["net-conf.json"], n, err)
	}
	spec := set.Spec.Template.Spec
	for _, c := range spec.Containers {
		if strings.Contains(c.Image, "flannel") || len(c.Ports) > 0 {
			t.Errorf("container %s has the image %s and the ports %v", c.Name, c.Image, c.Ports)
		}
	}
	main := spec.Containers[0]
	if args := main.Args; !slices.Contains(args, "--healthz-port=8082") || !slices.Contains(args, "--kube-annotation-prefix=example.com/x") {
		t.Errorf("flags %q", args)
	}
	if _, err := daemonFlags(main.Args, nil); err != nil {
		t.Errorf("flags %q: %v", main.Args, err)
	}
	dirs := map[string]bool{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			dirs[v.HostPath.Path] = true
		}
	}
	if !dirs["/var/lib/rancher/k3s/data/cni"] || !dirs["/var/lib/rancher/k3s/agent/etc/cni/net.d"] {
		t.Errorf("directories of the host: %v", dirs)
	}
}

// helm runs Helm where it reaches the API server.
func (k *kubeCluster) helm(args ...string) {
	k.t.Helper()
	out, err := helm(k.t, func(cmd *exec.Cmd) (out []byte, err error) {
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+k.t.TempDir())
		err = k.under.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
		return out, err
	}, append(args, "--kubeconfig", k.kubeconfig, "--namespace", "overlayd")...)
	if err != nil {
		k.t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
}

// as returns a client with a token.
func (k *kubeCluster) as(token string) kubernetes.Interface {
	k.t.Helper()
	c := k.server.RESTConfig(token)
	c.Dial = func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = k.under.Do(func() error { conn, err = net.DialTimeout(network, addr, time.Second); return err })
		return conn, err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		k.t.Fatal(err)
	}
	return client
}

// daemonSet returns a DaemonSet, as the API server has it.
func (k *kubeCluster) daemonSet(namespace, name string) *appsv1.DaemonSet {
	k.t.Helper()
	set, err := k.client.AppsV1().DaemonSets(namespace).Get(k.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return set
}

// asPod starts a host's daemon as its pod of overlayd's DaemonSet would: with its flags, its ConfigMap, a token bound to a pod on the Node, and
// no program in its PATH. Other flags come last.
func (k *kubeCluster) asPod(i int, token string, args ...string) *process {
	k.t.Helper()
	h := k.hosts[i]
	conf, err := k.client.CoreV1().ConfigMaps("overlayd").Get(k.t.Context(), "overlayd", metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(h.subnetFile), "net-conf.json")
	if err := os.WriteFile(file, []byte(conf.Data["net-conf.json"]), 0o600); err != nil {
		k.t.Fatal(err)
	}
	flags := slices.Clone(k.daemonSet("overlayd", "overlayd").Spec.Template.Spec.Containers[0].Args)
	flags = append(flags, "--kubeconfig-file", k.server.Kubeconfig(k.t, "", token), "--net-config-path", file, "--subnet-file", h.subnetFile)
	h.daemon = h.overlaydWith([]string{"NODE_NAME=" + h.name, "PATH=/nonexistent"}, append(flags, args...)...)
	return h.daemon
}

// TestKubeChart: the chart is installed, upgraded, rolled back and removed. Its daemons do all that they do with their pods' tokens, are refused
// nothing, and can change nothing but what is theirs.
func TestKubeChart(t *testing.T) {
	t.Parallel()
	k := newKubeCluster(t, 2, kubeNetwork)
	set := []string{"--set", "podCidr=10.5.0.0/16", "--set", "flannel.resources.requests.cpu=50m"}
	k.helm(append([]string{"install", "overlayd", chart, "--create-namespace"}, set...)...)
	k.helm(append([]string{"upgrade", "overlayd", chart, "--set", "dataplane=kernel"}, set...)...)
	if args := k.daemonSet("overlayd", "overlayd").Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--dataplane=kernel") {
		t.Errorf("flags %q after the upgrade", args)
	}
	k.helm("rollback", "overlayd")
	d := k.daemonSet("overlayd", "overlayd")
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--dataplane=auto") {
		t.Errorf("flags %q after the way back", args)
	}
	if u := d.Spec.UpdateStrategy.RollingUpdate; u.MaxSurge.String() != "1" || u.MaxUnavailable.String() != "0" {
		t.Errorf("update strategy %v", u)
	}

	var tokens []string
	for i, mode := range []string{modeKernel, modeUserspace} {
		k.node(i, map[string]string{"example.com/other": "x"})
		tokens = append(tokens, kubetest.TokenOn(t, k.client, "overlayd", "overlayd", k.hosts[i].name))
		k.asPod(i, tokens[i], "--dataplane="+mode, "--probe-interval=100ms", "-v=1")
	}
	for _, h := range k.hosts {
		h.daemon.waitLog("msg=ready", patience)
	}
	warmUp(t, k.hosts[0].pod(0, 0), k.hosts[1].pod(0, 0))
	k.policy(tokens)

	k.hosts[0].daemon.waitLog(`msg="peer answers"`, patience)
	k.hosts[1].daemon.stop(9)
	k.hosts[1].Run("ip", "link", "set", "eth0", "down")
	eventually(t, patience, "an event", func() error {
		events, err := k.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=host0,reason=PeerUnreachable"})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("none")
		}
		return err
	})
	for _, bad := range []string{"forbidden", "denied", "no events", "level=ERROR"} {
		if text := k.hosts[0].daemon.text(); strings.Contains(text, bad) {
			t.Errorf("the log has %q:\n%s", bad, text)
		}
	}

	k.helm("uninstall", "overlayd")
	if _, err := k.client.AppsV1().DaemonSets("overlayd").Get(t.Context(), "overlayd", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DaemonSet is left: %v", err)
	}
	if _, err := k.client.RbacV1().ClusterRoles().Get(t.Context(), "overlayd", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ClusterRole is left: %v", err)
	}
}

// policy wants host0's token to change of host0's Node what is overlayd's, nothing else, and nothing of host1's.
func (k *kubeCluster) policy(tokens []string) {
	k.t.Helper()
	patch := func(token, node, body string) error {
		_, err := k.as(token).CoreV1().Nodes().Patch(k.t.Context(), node, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return err
	}
	const ours = `{"metadata":{"annotations":{"flannel.alpha.coreos.com/overlayd-node":"{\"v\":1,\"src4\":\"192.0.2.9\"}"}}}`
	eventually(k.t, patience, "the policy is in force", func() error {
		if err := patch(tokens[0], "host1", ours); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("another Node is changed: %v", err)
		}
		return nil
	})
	unbound, err := k.client.CoreV1().ServiceAccounts("overlayd").CreateToken(k.t.Context(), "overlayd", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, c := range []struct {
		name, token, node, body, refused string
	}{
		{"own annotation", tokens[0], "host0", ours, ""},
		{"own condition", tokens[0], "host0", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp"}]}}`, ""},
		{"the other one's own", tokens[1], "host1", ours, ""},
		{"another Node", tokens[0], "host1", ours, "its own Node only, not host1"},
		{"a token of no pod", unbound.Status.Token, "host0", ours, "overlayd of node unknown"},
		{"another annotation", tokens[0], "host0", `{"metadata":{"annotations":{"example.com/other":"y"}}}`, "its own annotations only"},
		{"a new annotation", tokens[0], "host0", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip-overwrite":"192.0.2.9"}}}`, "its own annotations only"},
		{"an annotation removed", tokens[0], "host0", `{"metadata":{"annotations":{"example.com/other":null}}}`, "its own annotations only"},
		{"a label", tokens[0], "host0", `{"metadata":{"labels":{"a":"b"}}}`, "labels"},
		{"a finalizer", tokens[0], "host0", `{"metadata":{"finalizers":["example.com/x"]}}`, "finalizers"},
		{"another condition", tokens[0], "host0", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "the condition NetworkUnavailable only"},
		{"capacity", tokens[0], "host0", `{"status":{"capacity":{"cpu":"99"}}}`, "nothing of the status"},
		{"addresses", tokens[0], "host0", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, "nothing of the status"},
		{"images", tokens[0], "host0", `{"status":{"images":[{"names":["x"]}]}}`, "nothing of the status"},
		{"node info", tokens[0], "host0", `{"status":{"nodeInfo":{"machineID":"x","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}`, "nothing of the status"},
	} {
		switch err := patch(c.token, c.node, c.body); {
		case c.refused == "" && err != nil:
			k.t.Errorf("%s: %v", c.name, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			k.t.Errorf("%s: want %q, got %v", c.name, c.refused, err)
		}
	}
	if _, err := k.client.CoreV1().Nodes().Patch(k.t.Context(), "host0", types.StrategicMergePatchType, []byte(`{"status":{"capacity":{"cpu":"2"}}}`), metav1.PatchOptions{}, "status"); err != nil {
		k.t.Errorf("kubelets and administrators are not meant: %v", err)
	}
}
