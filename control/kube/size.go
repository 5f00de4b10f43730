package kube

import (
	"bytes"
	"context"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxAnswer bounds one answer of the API server, in bytes: it holds a page of real Nodes. Whoever may change one Node can
// make that 100 times larger, and so a page that all nodes read. A watch reads one Node at a time, whatever its length.
const maxAnswer = 6 << 20

// bounded reads answers whole and refuses those that are too long, with the status of a request that is.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet || r.URL.Query().Has("watch") {
		return resp, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if failed := resp.Body.Close(); err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	if len(text) > maxAnswer {
		resp.StatusCode, resp.Status, resp.Header, text = http.StatusRequestEntityTooLarge, "", http.Header{}, nil
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

// WrappedRoundTripper lets CloseIdleConnectionsFor find the transport.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// listNodes lists Nodes. A page that is too long is asked for again with half as many.
func (s *Store) listNodes(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	for {
		list, err := s.api.nodes(ctx, o)
		if !apierrors.IsRequestEntityTooLargeError(err) || o.Limit <= 1 {
			return list, err
		}
		o.Limit /= 2
	}
}
