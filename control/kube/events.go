package kube

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
)

// Events are about the Node, which is in no namespace: theirs is then "default" (k8s.io/client-go/tools/record, v0.37).
const eventNamespace = metav1.NamespaceDefault

// eventSource is the component that kubectl describe node shows beside an event.
const eventSource = "overlayd"

// Tell implements control.EventTeller: it writes an Event about the own Node, if the API server lets this user write any.
// It asks that once.
func (s *Store) Tell(ctx context.Context, e control.Event) error {
	allowed, err := s.mayTell(ctx)
	if err != nil || !allowed {
		return err
	}
	node, err := s.get(ctx)
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	kind := corev1.EventTypeWarning
	if e.Over {
		kind = corev1.EventTypeNormal
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: node.Name + ".", Namespace: eventNamespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: node.UID, APIVersion: "v1"},
		Reason:         e.Reason, Message: control.Printable(e.Text, 1024), Type: kind, Source: corev1.EventSource{Component: eventSource, Host: node.Name},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.api.createEvent(call, event); err != nil {
		return fmt.Errorf("write event %s of node %s: %w", e.Reason, quote(node.Name), err)
	}
	return nil
}

// mayTell reports whether this user may write events. The log says so once if not: flannel's role has no such right.
func (s *Store) mayTell(ctx context.Context) (bool, error) {
	s.mu.Lock()
	known := s.tells
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	may, err := s.api.mayUser(call, authorizationv1.ResourceAttributes{Namespace: eventNamespace, Verb: "create", Resource: "events", Version: "v1"})
	if err != nil {
		return false, fmt.Errorf("ask whether events may be written: %w", err)
	}
	s.mu.Lock()
	s.tells = &may
	s.mu.Unlock()
	if !may {
		s.cfg.Log.InfoContext(ctx, "no events about this node are written: the role of overlayd does not allow that", "fix", "give it the rule for events of deploy/kubernetes/overlayd.yml")
	}
	return may, nil
}
