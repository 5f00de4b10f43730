//go:build flannel

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// flannelCNI returns a directory with flannel's CNI plugin: OVERLAYD_FLANNEL_CNI, which make test-flannel builds.
func flannelCNI(t *testing.T) string {
	t.Helper()
	program := os.Getenv("OVERLAYD_FLANNEL_CNI")
	if program == "" {
		t.Fatal("OVERLAYD_FLANNEL_CNI is not set: run make test-flannel")
	}
	return filepath.Dir(program)
}

// TestFlanneldCNI: on a host of flanneld the plugin makes pods that reach those of an overlayd, in every version of CNI, and
// STATUS needs no daemon that answers.
func TestFlanneldCNI(t *testing.T) {
	c := newCluster(t, 2, testNetwork)
	c.hosts[0].flanneld()
	c.hosts[1].up("--dataplane", modeUserspace)
	checkRuntime(c.hosts[0].cniRuntime(), c.hosts[1].pod(0, 0))
}

// TestFlanneldCNISwapped: each plugin checks and deletes pods that the other has made, under flanneld and under an overlayd
// that took its place.
func TestFlanneldCNISwapped(t *testing.T) {
	flannels := flannelCNI(t)
	c := newCluster(t, 2, testNetwork)
	h := c.hosts[0]
	h.flanneld()
	c.hosts[1].up("--dataplane", modeKernel)
	far := c.hosts[1].pod(0, 0)
	r := h.cniRuntime()
	r.plugin = "flannel"
	for _, daemon := range []string{modeFlanneld, modeKernel, modeUserspace} {
		if daemon != modeFlanneld {
			h.daemon.stop(unix.SIGTERM)
			h.up("--dataplane", daemon, "--ip-masq")
		}
		for _, v := range []string{"0.3.1", "0.4.0"} { // flannel's knows no newer one
			for _, way := range [][2]string{{flannels, r.bin}, {r.bin, flannels}} {
				p := r.pod(v, way[0])
				warmUp(t, p, far)
				if v != "0.3.1" {
					if _, err := r.tool(v, r.bin, "check", p.NS); err != nil {
						t.Error(err)
					}
				}
				if _, err := r.tool(v, way[1], "del", p.NS); err != nil {
					t.Error(err)
				}
				r.checkLeft(fmt.Sprintf("%s, CNI %s, from %s to %s", daemon, v, way[0], way[1]))
			}
		}
		// A pod of flannel's that the runtime has forgotten.
		lost := r.pod("0.4.0", flannels)
		r.must("1.1.0", "gc", lost.NS)
		r.checkLeft("GC")
	}
}

// TestFlanneldCNIConfig: what is saved, which the delegate gets, is what flannel's plugin saves.
func TestFlanneldCNIConfig(t *testing.T) {
	netnstest.RequireRoot(t)
	flannels := flannelCNI(t)
	const v4, v6 = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n", "FLANNEL_IPV6_NETWORK=fd10:5::/48\nFLANNEL_IPV6_SUBNET=fd10:5:0:1::1/64\n"
	for name, c := range map[string]struct{ env, more string }{
		"plain":    {v4 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", ""},
		"kube":     {v4 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", `,"delegate":{"hairpinMode":true,"isDefaultGateway":true}`},
		"dual":     {v4 + v6 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", ""},
		"IPv6":     {v6 + "FLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n", `,"delegate":{"mtu":1300}`},
		"ptp":      {v4 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", `,"delegate":{"type":"ptp"}`},
		"own keys": {v4 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", `,"delegate":{"bridge":"br7","isGateway":true,"ipMasq":false},"runtimeConfig":{"mac":"02:00:00:00:00:01"}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHosts(t, []string{under4}, 1).hosts[0]
			if err := os.WriteFile(h.subnetFile, []byte(c.env), 0o644); err != nil {
				t.Fatal(err)
			}
			r := h.cniRuntime()
			r.plugin, r.more = "flannel", c.more
			var saved [2]map[string]any
			for i, bin := range []string{flannels, r.bin} {
				ns := netnstest.New(t)
				if _, err := r.tool("0.4.0", bin, "add", ns); err != nil {
					t.Fatal(err)
				}
				files, err := filepath.Glob(r.data + "/*")
				if err != nil || len(files) != 1 {
					t.Fatalf("saved: %v, %v", files, err)
				}
				text, err := os.ReadFile(files[0])
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(text, &saved[i]); err != nil {
					t.Fatal(err)
				}
				if _, err := r.tool("0.4.0", bin, "del", ns); err != nil {
					t.Fatal(err)
				}
			}
			if delete(saved[1], "overlayd"); !reflect.DeepEqual(saved[0], saved[1]) {
				t.Errorf("flannel's: %v\nours:      %v", saved[0], saved[1])
			}
		})
	}
}
