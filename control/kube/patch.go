package kube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patch is a strategic merge patch of a Node. The UID makes the API server refuse it for
// any other Node of the same name.
type patch struct {
	Metadata patchMetadata `json:"metadata"`
	Status   *patchStatus  `json:"status,omitempty"`
}

type patchMetadata struct {
	UID         types.UID          `json:"uid"`
	Annotations map[string]*string `json:"annotations,omitempty"` // nil removes
}

type patchStatus struct {
	Conditions []corev1.NodeCondition `json:"conditions"`
}

// change returns the patch that gives n, of the annotations that keys names, those in
// want and no others, and if ready is set the condition that its network is available.
// It is nil if n is so already.
func change(n *corev1.Node, keys []string, want map[string]string, ready bool, now time.Time) ([]byte, error) {
	p := patch{Metadata: patchMetadata{UID: n.UID, Annotations: map[string]*string{}}}
	for _, k := range keys {
		have, had := n.Annotations[k]
		v, wanted := want[k]
		switch {
		case wanted && have != v:
			p.Metadata.Annotations[k] = &v
		case !wanted && had:
			p.Metadata.Annotations[k] = nil
		}
	}
	if ready && !isAvailable(n) {
		p.Status = &patchStatus{Conditions: []corev1.NodeCondition{available(now)}}
	}
	if len(p.Metadata.Annotations) == 0 && p.Status == nil {
		return nil, nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("make patch of node %s: %w", quote(n.Name), err)
	}
	return text, nil
}

// markChange changes the spelling of one family's data, by a blank in front of it or none, if that family does
// not change and the other one does. In a dual-stack network flanneld (v0.28.4) takes an update of a Node for
// a change only if both families differ from before.
func (n names) markChange(have, want map[string]string) {
	if want[n.data] == "" || want[n.dataV6] == "" {
		return
	}
	changes := func(ip, data string) bool {
		return have[ip] != want[ip] || strings.TrimLeft(have[data], " ") != want[data]
	}
	v4, v6 := changes(n.publicIP, n.data), changes(n.publicIPv6, n.dataV6)
	for _, f := range [...]struct {
		data         string
		this, others bool
	}{{n.data, v4, v6}, {n.dataV6, v6, v4}} {
		plain := want[f.data]
		if isPlain := have[f.data] == plain; !f.this && isPlain == f.others { // another spelling than now, or the same
			want[f.data] = " " + plain
		}
	}
}

// available is the condition that flannel sets.
func available(now time.Time) corev1.NodeCondition {
	t := metav1.NewTime(now)
	return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "FlannelIsUp", Message: "Flannel is running on this node", LastHeartbeatTime: t, LastTransitionTime: t}
}

// isAvailable reports whether n says so, whoever has set it and with whatever reason.
func isAvailable(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	})
}
