package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/overlayd/overlayd/control"
)

// publish makes node say l, and returns l with the revisions of what it says.
func (s *Store) publish(ctx context.Context, node *corev1.Node, l control.Lease) (control.Lease, error) {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	node, err := s.patch(ctx, node, s.reader(control.Network{}).annotations(l), ready)
	if err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision = revisions(node)
	return l, nil
}

// patch makes node say want and nothing else of a lease, if it does not.
func (s *Store) patch(ctx context.Context, node *corev1.Node, want map[string]string, ready bool) (*corev1.Node, error) {
	s.names.markChange(node.Annotations, want)
	text, err := change(node, s.names.written(), want, ready, time.Now())
	if err != nil || text == nil {
		return node, err
	}
	return s.send(ctx, node, text)
}

func (s *Store) send(ctx context.Context, node *corev1.Node, text []byte) (*corev1.Node, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	patched, err := s.api.patchStatus(call, node.Name, text)
	s.noteAnswer(ctx, patched, err)
	if err != nil {
		return nil, ended(ctx, fmt.Errorf("patch node %s: %w", quote(node.Name), err))
	}
	return patched, nil
}

// get returns the own Node.
func (s *Store) get(ctx context.Context) (*corev1.Node, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	name, err := s.nodeName(call)
	if err != nil {
		return nil, ended(ctx, err)
	}
	node, err := s.api.node(call, name)
	s.noteAnswer(ctx, node, err)
	if err != nil {
		return nil, ended(ctx, fmt.Errorf("get node %s: %w", quote(name), err))
	}
	return node, nil
}

// nodeName returns the own Node's name: Config's, or that of the Node on which the pod is.
func (s *Store) nodeName(ctx context.Context) (string, error) {
	s.mu.Lock()
	name := s.node
	s.mu.Unlock()
	if name != "" {
		return name, nil
	}
	pod, err := s.api.pod(ctx, s.cfg.PodNamespace, s.cfg.PodName)
	s.noteAnswer(ctx, pod, err)
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: POD_NAME tells the node's name only with the right to get pods: give it to the service account, or set NODE_NAME from the pod's spec.nodeName", err)
	}
	if err != nil {
		return "", fmt.Errorf("get pod %s of namespace %s, to learn this node's name: %w", quote(s.cfg.PodName), quote(s.cfg.PodNamespace), err)
	}
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s of namespace %s is on no node", quote(s.cfg.PodName), quote(s.cfg.PodNamespace))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = pod.Spec.NodeName
	return s.node, nil
}

// ended adds the end of ctx to an error that it caused: client-go does not always say so.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return errors.Join(ctx.Err(), err)
	}
	return err
}
