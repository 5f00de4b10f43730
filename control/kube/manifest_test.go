//go:build kube

package kube_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube"
	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestManifest: the API server takes all of it and warns of nothing, its config is valid,
// and its ServiceAccount may do what a Store does and nothing else.
func TestManifest(t *testing.T) {
	h := newHarness(t)
	apply(t, "../../deploy/kubernetes/overlayd.yml")
	core := shared.client.CoreV1()
	conf, err := core.ConfigMaps("overlayd").Get(t.Context(), "overlayd", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid([]byte(conf.Data["cni-conf.json"])) {
		t.Errorf("cni-conf.json is %q", conf.Data["cni-conf.json"])
	}
	if _, err := control.ParsePodNetwork([]byte(conf.Data["net-conf.json"])); err != nil {
		t.Error(err)
	}
	h.SetConfig(t, []byte(conf.Data["net-conf.json"]))
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.244.5.0/24"))
	token := kubetest.TokenOn(t, shared.client, "overlayd", "overlayd", "host")
	storeWith(t, h, token)
	onlyWhatItNeeds(t, token)
}

// storeWith does all that a Store does.
func storeWith(t *testing.T, h *harness, token string) {
	t.Helper()
	s := h.store(t, "host", func(c *kube.Config) {
		c.Kubeconfig, c.SetNodeNetworkUnavailable = shared.Kubeconfig(t, "", token), true
	})
	var l control.Lease
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // the authorizer learns of the role
		node, vteps := self()
		var err error
		if l, err = s.Acquire(t.Context(), node, vteps); err == nil {
			break
		}
		if !strings.Contains(err.Error(), "forbidden") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if err := s.MarkReady(t.Context()); err != nil {
		t.Error(err)
	}
	checkAvailable(t, "host")
	tellsEvent(t, s)
	v := follow(t, s)
	v.has(t, l.Key(), func(control.Lease) bool { return true })
	if _, err := s.Renew(t.Context(), l); err != nil {
		t.Error(err)
	}
	if _, _, err := s.PublicIPs(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Release(t.Context(), l); err != nil {
		t.Error(err)
	}
	v.until(t, 10*time.Second, "release", func() bool { return len(v.leases) == 0 })
}

// tellsEvent writes an event about the Node of s.
func tellsEvent(t *testing.T, s *kube.Store) {
	t.Helper()
	if err := s.Tell(t.Context(), control.Event{Reason: control.EventLeaseLost, Text: "a test\x1b"}); err != nil {
		t.Fatal(err)
	}
	events, err := shared.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=host"})
	if err != nil || len(events.Items) != 1 {
		t.Fatalf("%v, %v", events, err)
	}
	if e := events.Items[0]; e.Reason != control.EventLeaseLost || e.Type != "Warning" || e.Source.Component != "overlayd" || strings.Contains(e.Message, "\x1b") || !strings.HasPrefix(e.Message, "a test") {
		t.Errorf("event %+v", e)
	}
}

// onlyWhatItNeeds fails if the token is good for more.
func onlyWhatItNeeds(t *testing.T, token string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(shared.RESTConfig(token))
	if err != nil {
		t.Fatal(err)
	}
	ctx, nodes := t.Context(), client.CoreV1().Nodes()
	for what, call := range map[string]func() error{
		"create a node": func() error {
			_, err := nodes.Create(ctx, kubetest.NewNode("x", nil), metav1.CreateOptions{})
			return err
		},
		"delete a node": func() error { return nodes.Delete(ctx, "host", metav1.DeleteOptions{}) },
		"patch a node": func() error {
			_, err := nodes.Patch(ctx, "host", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		},
		"update a node's status": func() error {
			_, err := nodes.UpdateStatus(ctx, kubetest.NewNode("host", nil), metav1.UpdateOptions{})
			return err
		},
		"get a pod": func() error {
			_, err := client.CoreV1().Pods("overlayd").Get(ctx, "x", metav1.GetOptions{})
			return err
		},
		"read secrets": func() error { _, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); return err },
	} {
		if err := call(); !apierrors.IsForbidden(err) {
			t.Errorf("may %s: %v", what, err)
		}
	}
}

// warnings fails the test for what the API server warns of.
type warnings struct{ t *testing.T }

func (w warnings) HandleWarningHeader(_ int, _, text string) { w.t.Errorf("warning: %s", text) }

// apply creates what is in a file of YAML documents. Unknown and duplicate fields are errors.
func apply(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := shared.RESTConfig("")
	cfg.WarningHandler = warnings{t}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var o unstructured.Unstructured
		if err := yaml.UnmarshalStrict(doc, &o.Object); err != nil {
			t.Fatal(err)
		}
		kind := o.GroupVersionKind()
		resource := client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural(kind.Kind)})
		var to dynamic.ResourceInterface = resource
		if o.GetNamespace() != "" {
			to = resource.Namespace(o.GetNamespace())
		}
		if _, err := to.Create(t.Context(), &o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Errorf("create %s %s: %v", kind.Kind, o.GetName(), err)
		}
	}
}

// plural is how the API server calls objects of a kind.
func plural(kind string) string {
	if stem, ok := strings.CutSuffix(strings.ToLower(kind), "y"); ok {
		return stem + "ies"
	}
	return strings.ToLower(kind) + "s"
}

// TestMayListAndNotWatch: a right that is missing is one log line, beside one that is there.
func TestMayListAndNotWatch(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	var log netnstest.Log
	s := h.store(t, "host", func(c *kube.Config) {
		c.Kubeconfig = shared.Kubeconfig(t, "", lister(t))
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	follow(t, s)
	attempts := func() int { return strings.Count(log.String(), "level=DEBUG") } // client-go has a line for each
	for deadline := time.Now().Add(20 * time.Second); attempts() < 8; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts:\n%s", attempts(), log.String())
		}
	}
	text := log.String()
	if warned, said := strings.Count(text, "level=WARN"), strings.Count(text, "level=INFO"); warned != 1 || said != 0 || !strings.Contains(text, "watch nodes: trying again") {
		t.Errorf("%d warnings and %d other lines, want one warning:\n%s", warned, said, text)
	}
	for range 2 { // it may not, which is not an error
		if err := s.Tell(t.Context(), control.Event{Reason: control.EventLeaseLost}); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "no events about this node are written"); n != 1 {
		t.Errorf("%d lines say that events may not be written", n)
	}
}

// lister returns a token of a user who may list Nodes and not watch them.
func lister(t *testing.T) (token string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "lister"}
	_, err := shared.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = shared.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: meta.Name, Namespace: "default"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	accounts := shared.client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := accounts.CreateToken(t.Context(), meta.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(shared.RESTConfig(made.Status.Token))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // the authorizer learns of the role
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
			return made.Status.Token
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
