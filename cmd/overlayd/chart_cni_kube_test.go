//go:build kube

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// renderedSet returns the chart's DaemonSet for the newest version of Kubernetes.
func renderedSet(t *testing.T, args ...string) (set appsv1.DaemonSet) {
	t.Helper()
	out, err := template(t, "1.37.2", args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for doc := range strings.SplitSeq(out, "\n---\n") {
		if !strings.Contains(doc, "\nkind: DaemonSet") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), &set); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
	}
	return set
}

// rightsOf runs a command as root with what a container of a pod may, and no more.
func rightsOf(s *corev1.SecurityContext) []string {
	set := "-all"
	for _, name := range s.Capabilities.Add {
		set += ",+" + strings.ToLower(string(name))
	}
	return []string{"setpriv", "--bounding-set", set, "--inh-caps", "-all", "--no-new-privs"}
}

// TestKubeChartCNIOfAnotherUser: the container installs where the directories are another user's, as kubespray makes them. It is root, and may not
// do more than that needs.
func TestKubeChartCNIOfAnotherUser(t *testing.T) {
	t.Parallel()
	containers := renderedSet(t).Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "cni" })
	if add := containers[i].SecurityContext.Capabilities.Add; len(add) > 1 {
		t.Errorf("capabilities %v", add)
	}
	dir := t.TempDir()
	bin, conf, subnetFile := filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"), filepath.Join(dir, "subnet.env")
	for _, d := range []string{bin, conf} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, 998, 998); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(subnetFile, []byte("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := cniProgram()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(rightsOf(containers[i].SecurityContext), exe, "cni", "install", "--cni-as=flannel,overlayd-cni", "--cni-plugin", program,
		"--cni-bin-dir", bin, "--cni-conf-out", filepath.Join(conf, "10-flannel.conflist"), "--subnet-file", subnetFile)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), asOverlayd+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
