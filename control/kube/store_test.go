//go:build kube

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube"
	"github.com/overlayd/overlayd/control/kube/kubetest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

const netConf = `{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":44}}`

const dualConf = `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48","Backend":{"Type":"vxlan","VNI":44}}`

// self is what the host under test publishes.
func self() (control.Node, []dataplane.VTEP) {
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	return control.Node{ID: "id", Name: "host", PublicIP: v4, PublicIPv6: v6}, []dataplane.VTEP{
		{Addr: v4, MAC: encap.MAC{0x3e, 0x11, 0x22, 0x33, 0x44, 0x55}, VNI: 44},
		{Addr: v6, MAC: encap.MAC{0x3e, 0x11, 0x22, 0x33, 0x44, 0x66}, VNI: 44}}
}

func acquire(t *testing.T, s *kube.Store) control.Lease {
	t.Helper()
	node, vteps := self()
	l, err := s.Acquire(t.Context(), node, vteps)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func checkAnnotations(t *testing.T, node string, want map[string]string) {
	t.Helper()
	if got := kubetest.Get(t, shared.client, node).Annotations; !maps.Equal(got, want) {
		t.Errorf("annotations of %s are %q, want %q", node, got, want)
	}
}

// flannels are the annotations that flanneld writes of self, to the byte, and overlayd's own.
func flannels(more ...string) map[string]string {
	a := map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/backend-type":        "vxlan",
		"flannel.alpha.coreos.com/backend-data":        `{"VNI":44,"VtepMAC":"3e:11:22:33:44:55"}`,
		"flannel.alpha.coreos.com/public-ip":           "192.0.2.9",
		"flannel.alpha.coreos.com/overlayd-node":       `{"v":1}`,
	}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

// TestAcquirePublishes: on a Node without annotations, which makes flanneld panic, and
// beside those of others; nothing is written twice; Release takes back what is ours.
func TestAcquirePublishes(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	kubetest.Create(t, shared.client, kubetest.NewNode("bare", nil, "10.3.5.0/24"))
	kubetest.Create(t, shared.client, kubetest.NewNode("other", map[string]string{"dummy": "value", prefix + "public-ipv6": "2001:db8::1"}, "10.3.6.0/23"))
	for node, want := range map[string]map[string]string{"bare": flannels(), "other": flannels("dummy", "value")} {
		s := h.store(t, node)
		l := acquire(t, s)
		checkAnnotations(t, node, want)
		if !l.Expires.IsZero() || l.PublicIPv6.IsValid() {
			t.Errorf("lease %+v", l)
		}
		before := kubetest.Get(t, shared.client, node).ResourceVersion
		acquire(t, s)
		if _, err := s.Renew(t.Context(), l); err != nil {
			t.Error(err)
		}
		if now := kubetest.Get(t, shared.client, node).ResourceVersion; now != before {
			t.Errorf("%s was written without need: version %s, before %s", node, now, before)
		}
		if err := s.Release(t.Context(), l); err != nil {
			t.Error(err)
		}
		delete(want, "dummy")
		for k, v := range kubetest.Get(t, shared.client, node).Annotations {
			if _, ours := want[k]; ours {
				t.Errorf("%s is left with %s=%s", node, k, v)
			}
		}
	}
}

func TestAcquireDualStack(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(dualConf))
	kubetest.Create(t, shared.client, kubetest.NewNode("host", map[string]string{
		prefix + "public-ip-overwrite": "203.0.113.7", prefix + "public-ipv6-overwrite": "2001:db8:f::7"}, "10.3.5.0/25", "fd10:6:0:5::/72"))
	l := acquire(t, h.store(t, "host"))
	checkAnnotations(t, "host", flannels(prefix+"public-ip-overwrite", "203.0.113.7", prefix+"public-ipv6-overwrite", "2001:db8:f::7",
		prefix+"public-ip", "203.0.113.7", prefix+"public-ipv6", "2001:db8:f::7", prefix+"backend-v6-data", `{"VNI":44,"VtepMAC":"3e:11:22:33:44:66"}`,
		prefix+"overlayd-node", `{"v":1,"src4":"192.0.2.9","src6":"2001:db8::9"}`))
	if l.Key() != "10.3.5.0-25&fd10:6:0:5::-72" || l.PublicIP.String() != "203.0.113.7" {
		t.Errorf("lease %+v", l)
	}
}

// TestAcquireWaits: a Node without podCIDRs, and none at all, are errors that say so; later
// it is given one.
func TestAcquireWaits(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	s := h.store(t, "late")
	node, vteps := self()
	want := func(text string) {
		t.Helper()
		if l, err := s.Acquire(t.Context(), node, vteps); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("acquired %+v, %v, want %q", l, err, text)
		}
	}
	want(`get node "late"`)
	kubetest.Create(t, shared.client, kubetest.NewNode("late", nil))
	want(`node "late": pod cidr not assigned`)
	n := kubetest.Get(t, shared.client, "late")
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.99.77.0/24", []string{"10.99.77.0/24"}
	if _, err := shared.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want(`subnet "10.3.0.0/16" specified in the flannel net config doesn't contain "10.99.77.0/24" PodCIDR of the "late" node`)
	h.SetConfig(t, []byte(`{"Network":"10.99.0.0/16"}`))
	node.Underlay.Needs = []control.Need{{Addr: netip.MustParseAddr("10.99.77.1"), What: "the default gateway of this host"}}
	want(`node "late": podCIDRs ["10.99.77.0/24"]: subnet 10.99.77.0/24 holds 10.99.77.1, the default gateway of this host`)
	if got := kubetest.Get(t, shared.client, "late").Annotations["flannel.alpha.coreos.com/public-ip"]; got != "" {
		t.Errorf("published %s all the same", got)
	}
	node.Underlay = control.Underlay{}
	acquire(t, s)
}

func TestNetwork(t *testing.T) {
	h := newHarness(t)
	s := h.store(t, "x")
	for text, valid := range map[string]bool{netConf: true, `{"Network":"10.3.0.0/29","SubnetLen":9}`: true, "": false, `{"Network":"10.3.0.0/16","Backend":{"Type":"udp"}}`: false} {
		h.SetConfig(t, []byte(text))
		var bad *control.NetworkError
		if n, err := s.Network(t.Context()); valid != (err == nil) || err != nil && (!errors.As(err, &bad) || !strings.Contains(err.Error(), h.netConf)) {
			t.Errorf("config %q: %+v, %v", text, n, err)
		}
	}
}

// view follows a watch.
type view struct {
	updates <-chan control.Update
	leases  map[string]control.Lease
	bad     map[string]error
	resets  int
}

func follow(t *testing.T, s *kube.Store) *view {
	t.Helper()
	v := &view{updates: s.Watch(t.Context()), leases: map[string]control.Lease{}, bad: map[string]error{}}
	v.until(t, 10*time.Second, "the first update", func() bool { return v.resets > 0 })
	return v
}

// until takes updates until ok holds, and returns how long that took.
func (v *view) until(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin, timeout := time.Now(), time.After(limit)
	for !ok() {
		select {
		case u := <-v.updates:
			if u.Reset {
				v.resets++
				clear(v.leases)
				clear(v.bad)
			}
			for _, l := range u.Leases {
				v.leases[l.Key()] = l
				delete(v.bad, l.Key())
			}
			for _, b := range u.Bad {
				v.bad[b.Key] = b.Err
				delete(v.leases, b.Key)
			}
			for _, k := range u.Deleted {
				delete(v.leases, k)
				delete(v.bad, k)
			}
		case <-timeout:
			t.Fatalf("not within %s: %s; leases %v, bad %v", limit, what, v.leases, v.bad)
		}
	}
	return time.Since(begin)
}

func (v *view) has(t *testing.T, key string, l func(l control.Lease) bool) {
	t.Helper()
	v.until(t, 10*time.Second, key, func() bool { got, ok := v.leases[key]; return ok && l(got) })
}

// peerNode makes a Node as flanneld leaves it.
func peerNode(i int) *corev1.Node {
	return kubetest.NewNode(fmt.Sprintf("peer-%d", i), map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
		prefix + "public-ip":       fmt.Sprintf("192.0.2.%d", 100+i),
		prefix + "backend-data":    fmt.Sprintf(`{"VNI":44,"VtepMAC":"0e:2a:00:00:00:%02x"}`, i),
		prefix + "public-ipv6":     fmt.Sprintf("2001:db8::%d", 100+i),
		prefix + "backend-v6-data": fmt.Sprintf(`{"VNI":44,"VtepMAC":"0e:2a:00:00:66:%02x"}`, i),
	}, fmt.Sprintf("10.3.%d.0/24", 100+i), fmt.Sprintf("fd10:6:0:%d::/64", 100+i))
}

// TestWatchPeers: all that flanneld does not notice (facts D14).
func TestWatchPeers(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(dualConf))
	kubetest.Create(t, shared.client, peerNode(1))
	v := follow(t, h.store(t, "host"))
	key := func(i int) string { return fmt.Sprintf("10.3.%d.0-24&fd10:6:0:%d::-64", 100+i, 100+i) }
	v.has(t, key(1), func(l control.Lease) bool { return l.BackendV6.MAC[4] == 0x66 })

	kubetest.Annotate(t, shared.client, "peer-1", prefix+`backend-data={"VNI":44,"VtepMAC":"0e:2a:00:00:00:99"}`) // of one family only
	v.has(t, key(1), func(l control.Lease) bool { return l.Backend.MAC[5] == 0x99 })
	kubetest.Annotate(t, shared.client, "peer-1", prefix+"public-ipv6=2001:db8::999")
	v.has(t, key(1), func(l control.Lease) bool { return l.PublicIPv6 == netip.MustParseAddr("2001:db8::999") })

	kubetest.Annotate(t, shared.client, "peer-1", prefix+"kube-subnet-manager-") // not managed any more
	v.until(t, 10*time.Second, "removal", func() bool { return len(v.leases) == 0 })
	kubetest.Annotate(t, shared.client, "peer-1", prefix+"kube-subnet-manager=true")
	v.has(t, key(1), func(control.Lease) bool { return true })

	kubetest.Annotate(t, shared.client, "peer-1", prefix+"public-ip=junk")
	v.until(t, 10*time.Second, "bad", func() bool { return v.bad[key(1)] != nil })
	if err := v.bad[key(1)]; !strings.Contains(err.Error(), `node "peer-1": annotation `+prefix+`public-ip "junk"`) {
		t.Error(err)
	}

	kubetest.Delete(t, shared.client, "peer-1") // made again with another podCIDR
	again := peerNode(2)
	again.Name = "peer-1"
	kubetest.Create(t, shared.client, again)
	v.has(t, key(2), func(control.Lease) bool { return len(v.leases) == 1 && len(v.bad) == 0 })
	if v.resets != 1 {
		t.Errorf("%d resets", v.resets)
	}
}

// TestOwnNodeIsRepaired: whatever happens to the own Node, the watch shows that something is
// wrong, and Renew puts it right.
func TestOwnNodeIsRepaired(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.3.5.0/24"))
	var log netnstest.Log
	s := h.store(t, "host", func(c *kube.Config) {
		c.SetNodeNetworkUnavailable, c.Log = true, slog.New(slog.NewTextHandler(&log, nil))
	})
	l := acquire(t, s)
	if err := s.MarkReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := follow(t, s)
	for _, c := range []struct {
		name   string
		damage func()
		want   map[string]string
	}{
		{"annotation changed", func() { kubetest.Annotate(t, shared.client, "host", prefix+"public-ip=192.0.2.66") }, flannels()},
		{"annotation junk", func() { kubetest.Annotate(t, shared.client, "host", prefix+"backend-data={") }, flannels()},
		{"annotations gone", func() { h.strip(t, "host") }, flannels()},
		{"overwrite", func() { kubetest.Annotate(t, shared.client, "host", prefix+"public-ip-overwrite=203.0.113.7") },
			flannels(prefix+"public-ip-overwrite", "203.0.113.7", prefix+"public-ip", "203.0.113.7", prefix+"overlayd-node", `{"v":1,"src4":"192.0.2.9"}`)},
		{"facts", func() {
			kubetest.Annotate(t, shared.client, "host", prefix+`overlayd-node={"v":1,"src4":"192.0.2.77"}`)
		},
			flannels(prefix+"public-ip-overwrite", "203.0.113.7", prefix+"public-ip", "203.0.113.7", prefix+"overlayd-node", `{"v":1,"src4":"192.0.2.9"}`)},
		{"overwrite gone", func() { kubetest.Annotate(t, shared.client, "host", prefix+"public-ip-overwrite-") }, flannels()},
		{"network unavailable", func() {
			body := `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"}]}}`
			if _, err := shared.client.CoreV1().Nodes().Patch(t.Context(), "host", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
		}, flannels()},
		{"node made again", func() {
			kubetest.Delete(t, shared.client, "host")
			kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.3.5.0/24"))
		}, flannels()},
	} {
		c.damage()
		v.until(t, 10*time.Second, c.name+" is seen", func() bool {
			now, ok := v.leases[l.Key()]
			return !ok || string(now.Value()) != string(l.Value()) || now.Facts != l.Facts.WithName("host")
		})
		var err error
		if l, err = s.Renew(t.Context(), l); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		checkAnnotations(t, "host", c.want)
		checkAvailable(t, "host")
		v.has(t, l.Key(), func(now control.Lease) bool {
			return string(now.Value()) == string(l.Value()) && now.Facts == l.Facts.WithName("host")
		})
	}
	if text := log.String(); strings.Count(text, "another address on this Node") != 1 || !strings.Contains(text, "192.0.2.66") {
		t.Errorf("the log has not the other address, and that alone:\n%s", text)
	}
	kubetest.Delete(t, shared.client, "host")
	if _, err := s.Renew(t.Context(), l); err == nil || errors.Is(err, control.ErrLost) {
		t.Errorf("node deleted: %v, want an error that is no loss", err)
	}
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.3.6.0/24"))
	if _, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) || !strings.Contains(err.Error(), "10.3.6.0/24") {
		t.Errorf("another podCIDR: %v, want ErrLost", err)
	}
	if l = acquire(t, s); l.Key() != "10.3.6.0-24" {
		t.Errorf("acquired %s", l.Key())
	}
}

// TestRenewUnderAnotherConfig: a Node is put right as the config in force says, whatever the file says by now.
func TestRenewUnderAnotherConfig(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	n := kubetest.NewNode("host", nil, "10.3.5.0/24", "fd10:6:0:5::/64")
	kubetest.Create(t, shared.client, n)
	s := h.store(t, "host")
	l := acquire(t, s)
	for name, text := range map[string][]byte{"with IPv6": []byte(dualConf), "another network": []byte(strings.Replace(netConf, "10.3.", "10.9.", 1)), "junk": []byte("{"), "none": nil} {
		h.SetConfig(t, text)
		h.strip(t, "host")
		if now, err := s.Renew(t.Context(), l); err != nil || now.Key() != l.Key() {
			t.Errorf("%s: %v, %s", name, err, now.Key())
		}
		checkAnnotations(t, "host", flannels())
	}
}

func checkAvailable(t *testing.T, node string) {
	t.Helper()
	for _, c := range kubetest.Get(t, shared.client, node).Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			if c.Status != corev1.ConditionFalse || c.Reason != "FlannelIsUp" || c.Message != "Flannel is running on this node" {
				t.Errorf("condition %+v", c)
			}
			return
		}
	}
	t.Errorf("node %s has no condition NetworkUnavailable", node)
}

func TestPublicIPs(t *testing.T) {
	h := newHarness(t)
	s := h.store(t, "host")
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil))
	if v4, v6, err := s.PublicIPs(t.Context()); v4.IsValid() || v6.IsValid() || err != nil {
		t.Errorf("none: %v, %v, %v", v4, v6, err)
	}
	kubetest.Annotate(t, shared.client, "host", prefix+"node-public-ip=192.0.2.7", prefix+"node-public-ipv6=2001:db8::7")
	if v4, v6, err := s.PublicIPs(t.Context()); v4.String() != "192.0.2.7" || v6.String() != "2001:db8::7" || err != nil {
		t.Errorf("both: %v, %v, %v", v4, v6, err)
	}
	kubetest.Annotate(t, shared.client, "host", prefix+"node-public-ip=2001:db8::7")
	if _, _, err := s.PublicIPs(t.Context()); err == nil || !strings.Contains(err.Error(), prefix+`node-public-ip "2001:db8::7" is not an IPv4 address`) {
		t.Errorf("bad: %v", err)
	}
}

// TestNodeNameOfPod: as flanneld's DaemonSet has it.
func TestNodeNameOfPod(t *testing.T) {
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	kubetest.Create(t, shared.client, kubetest.NewNode("host", nil, "10.3.5.0/24"))
	pods := shared.client.CoreV1().Pods("default")
	for pod, node := range map[string]string{"here": "host", "nowhere": ""} {
		spec := corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "x", Image: "x"}}}
		if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer pods.Delete(context.Background(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	store := func(pod string) *kube.Store {
		return h.store(t, "", func(c *kube.Config) { c.PodName, c.PodNamespace = pod, "default" })
	}
	acquire(t, store("here"))
	checkAnnotations(t, "host", flannels())
	for pod, want := range map[string]string{"nowhere": `pod "nowhere" of namespace "default" is on no node`, "missing": `get pod "missing" of namespace "default"`} {
		if _, _, err := store(pod).PublicIPs(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pod, err)
		}
	}
}

// TestServerAway: what happened meanwhile is seen 2 s after the API server can be reached again.
func TestServerAway(t *testing.T) {
	const away, soon = 12 * time.Second, 2 * time.Second
	h := newHarness(t)
	h.SetConfig(t, []byte(netConf))
	kubetest.Create(t, shared.client, peerNode(1))
	s := h.store(t, "host")
	v := follow(t, s)
	h.proxy.cut(true)
	kubetest.Delete(t, shared.client, "peer-1")
	kubetest.Create(t, shared.client, peerNode(2))
	time.Sleep(away) // the outage, long enough for every backoff to grow
	if _, ok := v.leases["10.3.101.0-24"]; !ok {
		t.Error("the peer was forgotten meanwhile")
	}
	h.proxy.cut(false)
	took := v.until(t, soon, "the new peer", func() bool { _, ok := v.leases["10.3.102.0-24"]; return ok && len(v.leases) == 1 })
	t.Logf("cut off: seen %s after the return", took)

	shared.kill()
	time.Sleep(away)
	if err := shared.start(); err != nil {
		t.Fatal(err)
	}
	kubetest.Create(t, shared.client, peerNode(3))
	took = v.until(t, soon, "the third peer", func() bool { _, ok := v.leases["10.3.103.0-24"]; return ok && len(v.leases) == 2 })
	t.Logf("restarted: seen %s after the return", took)
}
