//go:build kube

package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube"
	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane"
)

const prefix = kube.DefaultAnnotationPrefix + "/"

// leaseAnnotations are those that make a lease.
var leaseAnnotations = []string{"kube-subnet-manager", "backend-type", "backend-data", "public-ip", "backend-v6-data", "public-ipv6", "overlayd-node"}

// harness is an empty cluster on the API server that all tests share. A raw entry is a
// Node with the podCIDRs that the key has and the annotations that the value has.
type harness struct {
	proxy   *proxy
	netConf string

	mu      sync.Mutex
	next    int                  // number of the next podCIDR
	deleted map[string]time.Time // when the Node of a key was
}

func newHarness(tb testing.TB) *harness {
	tb.Helper()
	h := &harness{proxy: newProxy(tb, shared.Addr.String()), netConf: filepath.Join(tb.TempDir(), "net-conf.json"),
		next: 40, deleted: map[string]time.Time{}}
	h.clear(tb)
	tb.Cleanup(func() { h.clear(tb) })
	return h
}

func (h *harness) clear(tb testing.TB) {
	tb.Helper()
	if err := shared.client.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		tb.Fatalf("delete all nodes: %v", err)
	}
}

// store opens a Store of the Node with this name.
func (h *harness) store(tb testing.TB, node string, change ...func(*kube.Config)) *kube.Store {
	tb.Helper()
	cfg := kube.Config{Kubeconfig: shared.Kubeconfig(tb, h.proxy.addr(), ""), NodeName: node, NetConfigPath: h.netConf,
		Log: slog.New(slog.NewTextHandler(tb.Output(), nil))}
	for _, f := range change {
		f(&cfg)
	}
	s, err := kube.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Open implements controltest.Harness.
func (h *harness) Open(tb testing.TB) control.Store {
	return &assigned{Store: h.store(tb, "not-acquired"), h: h, tb: tb}
}

// assigned is a Store of the Node that Acquire names: it makes that Node first, if it does
// not exist, as a kubelet and a controller would.
type assigned struct {
	*kube.Store
	h  *harness
	tb testing.TB
}

func (a *assigned) Acquire(ctx context.Context, node control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	if kubetest.Get(a.tb, shared.client, node.Name) == nil {
		kubetest.Create(a.tb, shared.client, kubetest.NewNode(node.Name, nil, a.h.podCIDRs(node.Previous)...))
	}
	a.Store = a.h.store(a.tb, node.Name)
	return a.Store.Acquire(ctx, node, vteps)
}

func (h *harness) podCIDRs(previous []netip.Prefix) (cidrs []string) {
	for _, p := range previous {
		cidrs = append(cidrs, p.String())
	}
	if len(cidrs) == 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		cidrs = []string{fmt.Sprintf("10.3.%d.0/24", h.next)}
		h.next++
	}
	return cidrs
}

// SetConfig implements controltest.Harness.
func (h *harness) SetConfig(tb testing.TB, text []byte) {
	tb.Helper()
	if err := os.WriteFile(h.netConf, text, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// entries returns the Nodes that have a lease, whatever it is worth, by its key.
func (h *harness) entries(tb testing.TB) map[string]*corev1.Node {
	tb.Helper()
	list, err := shared.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	entries := map[string]*corev1.Node{}
	for i, n := range list.Items {
		if n.Annotations[prefix+"kube-subnet-manager"] == "true" {
			entries[keyOf(&n)] = &list.Items[i]
		}
	}
	return entries
}

func keyOf(n *corev1.Node) string {
	var l control.Lease
	for _, s := range n.Spec.PodCIDRs {
		if p := netip.MustParsePrefix(s); p.Addr().Is4() {
			l.Subnet = p
		} else {
			l.IPv6Subnet = p
		}
	}
	return l.Key()
}

// PutRaw implements controltest.Harness. A value that is no JSON stands in backend-data.
func (h *harness) PutRaw(tb testing.TB, key string, value []byte) {
	tb.Helper()
	pairs := []string{prefix + "kube-subnet-manager=true"}
	var v struct {
		PublicIP, PublicIPv6, BackendType string
		BackendData, BackendV6Data        json.RawMessage
	}
	if json.Unmarshal(value, &v) != nil {
		v.BackendType, v.PublicIP, v.BackendData = "vxlan", "192.168.250.250", value
	}
	for name, text := range map[string]string{"backend-type": v.BackendType, "public-ip": v.PublicIP, "public-ipv6": v.PublicIPv6,
		"backend-data": string(v.BackendData), "backend-v6-data": string(v.BackendV6Data)} {
		if text != "" {
			pairs = append(pairs, prefix+name+"="+text)
		}
	}
	name := h.nodeOf(tb, key)
	if name == "" {
		name = h.create(tb, key)
	}
	kubetest.Annotate(tb, shared.client, name, pairs...)
}

// nodeOf returns the Node that has the podCIDRs of a key, "" if no Node has them.
func (h *harness) nodeOf(tb testing.TB, key string) string {
	tb.Helper()
	if name := rawName(key); kubetest.Get(tb, shared.client, name) != nil {
		return name
	}
	list, err := shared.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	for _, n := range list.Items {
		if len(n.Spec.PodCIDRs) > 0 && keyOf(&n) == key {
			return n.Name
		}
	}
	return ""
}

func rawName(key string) string {
	return "raw-" + strings.NewReplacer("&", "-and-", ":", "x").Replace(strings.TrimSuffix(key, "::")) + "-raw"
}

// create makes the Node of a key: a later one in a later second, as its age is in seconds.
func (h *harness) create(tb testing.TB, key string) string {
	tb.Helper()
	v4, v6, err := control.ParseKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	var cidrs []string
	for _, p := range []netip.Prefix{v4, v6} {
		if p.IsValid() {
			cidrs = append(cidrs, p.String())
		}
	}
	h.mu.Lock()
	deleted := h.deleted[key]
	h.mu.Unlock()
	for time.Now().Unix() <= deleted.Unix() {
		time.Sleep(20 * time.Millisecond)
	}
	kubetest.Create(tb, shared.client, kubetest.NewNode(rawName(key), nil, cidrs...))
	return rawName(key)
}

// DeleteRaw implements controltest.Harness: a raw Node is deleted, and that of a Store
// loses its annotations.
func (h *harness) DeleteRaw(tb testing.TB, key string) {
	tb.Helper()
	name := h.nodeOf(tb, key)
	if name == rawName(key) {
		kubetest.Delete(tb, shared.client, name)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.deleted[key] = time.Now()
		return
	}
	if name != "" {
		h.strip(tb, name)
	}
}

// strip removes the annotations that make a lease.
func (h *harness) strip(tb testing.TB, node string) {
	tb.Helper()
	var gone []string
	for _, a := range leaseAnnotations {
		gone = append(gone, prefix+a+"-")
	}
	kubetest.Annotate(tb, shared.client, node, gone...)
}

// GetRaw implements controltest.Harness.
func (h *harness) GetRaw(tb testing.TB, key string) ([]byte, bool) {
	tb.Helper()
	n, ok := h.entries(tb)[key]
	if !ok {
		return nil, false
	}
	text := func(name string) string { return n.Annotations[prefix+name] }
	ip, v6 := text("public-ip"), "null"
	if ip == "" {
		ip = "0.0.0.0"
	}
	if s := text("public-ipv6"); s != "" {
		v6 = `"` + s + `"`
	}
	value := `{"PublicIP":"` + ip + `","PublicIPv6":` + v6 + `,"BackendType":"` + text("backend-type") + `"`
	if s := text("backend-data"); s != "" {
		value += `,"BackendData":` + s
	}
	if s := text("backend-v6-data"); s != "" {
		value += `,"BackendV6Data":` + s
	}
	return []byte(value + "}"), true
}

// Keys implements controltest.Harness.
func (h *harness) Keys(tb testing.TB) []string { return slices.Sorted(maps.Keys(h.entries(tb))) }

// Disconnect implements controltest.Disconnecter.
func (h *harness) Disconnect(testing.TB) { h.proxy.cut(false) }

// Compact implements controltest.Compacter: the API server forgets what it remembers beside
// etcd when it restarts.
func (h *harness) Compact(tb testing.TB) {
	tb.Helper()
	r, err := shared.etcd.Get(context.Background(), "x")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := shared.etcd.Compact(context.Background(), r.Header.Revision); err != nil {
		tb.Fatal(err)
	}
	shared.restart(tb)
}
