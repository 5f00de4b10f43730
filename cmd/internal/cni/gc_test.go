package cni

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestGCList: the list of what the runtime still has comes under either name, the newer one first. Without a list, or with something else in its
// place, no pod is deleted.
func TestGCList(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	const one, none = `[{"containerID":"pod","ifname":"eth0"}]`, `[]`
	for name, c := range map[string]struct {
		more    string
		refused uint // with this code
		gone    bool
	}{
		"newer":          {`,"cni.dev/valid-attachments":` + one, 0, false},
		"older":          {`,"cni.dev/attachments":` + one, 0, false},
		"both":           {`,"cni.dev/attachments":` + none + `,"cni.dev/valid-attachments":` + one, 0, false},
		"none is left":   {`,"cni.dev/valid-attachments":` + none, 0, true},
		"older, none":    {`,"cni.dev/attachments":` + none, 0, true},
		"null":           {`,"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, 0, true},
		"no list":        {``, types.ErrInvalidNetworkConfig, false},
		"another name":   {`,"CNI.DEV/valid-attachments":` + none, types.ErrInvalidNetworkConfig, false},
		"older, no list": {`,"cni.dev/attachments":{}`, types.ErrInvalidNetworkConfig, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, pod := newNode(t, env4), netnstest.New(t)
			n.run("ADD", n.conf("1.1.0", ""), of("pod", "eth0", netns(pod))...).must(t, "ADD")
			a := n.run("GC", n.conf("1.1.0", c.more))
			if c.refused == 0 {
				a.must(t, "GC")
			} else if e := a.refusal(t, "GC"); e.Code != c.refused || !strings.Contains(e.Msg, "cni.dev/") {
				t.Errorf("code %d: %v, want %d", e.Code, &e, c.refused)
			}
			if gone := len(n.veths()) == 0; gone != c.gone {
				t.Errorf("is the pod's network deleted? %v, want %v", gone, c.gone)
			}
		})
	}
}
