package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxAnswer bounds one answer of the API server, in bytes: it holds a page of real Nodes. Whoever may change one Node can
// make that 100 times larger, and so a page that all nodes read. A watch reads one Node at a time.
const maxAnswer = 6 << 20

// bounded reads answers whole and refuses those that are too long, with the status of a request that is.
type bounded struct {
	http.RoundTripper
	silent func(context.Context, error) // see noteSilence
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		b.silent(r.Context(), err)
		return resp, err
	}
	resp.Body = heard{resp.Body, r.Context(), b.silent}
	switch {
	case r.URL.Query().Has("watch") && resp.StatusCode == http.StatusOK:
		if strings.Contains(resp.Header.Get("Content-Type"), "json") { // client-go bounds what is read of protobuf
			resp.Body = &events{ReadCloser: resp.Body}
		}
		return resp, nil
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

// events is a watch in JSON. It ends with an error if an event has more than maxAnswer bytes: client-go reads each whole, however long.
type events struct {
	io.ReadCloser
	size, depth     int // of the event that is being read
	quoted, escaped bool
}

// Read implements io.Reader.
func (e *events) Read(b []byte) (n int, err error) {
	n, err = e.ReadCloser.Read(b)
	for _, c := range b[:n] {
		switch e.size++; {
		case e.escaped:
			e.escaped = false
		case e.quoted:
			e.escaped, e.quoted = c == '\\', c != '"'
		case c == '"':
			e.quoted = true
		case c == '{':
			e.depth++
		case c == '}':
			if e.depth--; e.depth <= 0 {
				e.size, e.depth = 0, 0
			}
		}
		if e.size > maxAnswer {
			return 0, fmt.Errorf("an event of the watch has more than %d bytes", maxAnswer)
		}
	}
	return n, err
}

// WrappedRoundTripper lets CloseIdleConnectionsFor find the transport.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// listNodes lists Nodes. A page that is too long is asked for again with half as many, and no page has more than fits says until pages are short
// again: whoever makes many Nodes large would have each page asked for several times. A list without pages that is too long has expired.
func (s *Store) listNodes(ctx context.Context, o metav1.ListOptions, fits *int64) (*corev1.NodeList, error) {
	most := o.Limit
	for {
		o.Limit = min(most, *fits)
		list, err := s.api.nodes(ctx, o)
		switch {
		case apierrors.IsRequestEntityTooLargeError(err) && most == 0: // client-go asks for all at once when its pages have expired; after this error it begins again
			return nil, apierrors.NewResourceExpired(err.Error())
		case apierrors.IsRequestEntityTooLargeError(err) && o.Limit > 1:
			*fits = o.Limit / 2
			continue
		case err == nil && *fits < pageSize && list.Size() < maxAnswer/4: // of 5000 Nodes the sizes take 0.2 s
			*fits = min(2**fits, pageSize)
		}
		return list, err
	}
}
