package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// A connection on which nothing has come for so long is asked by a PING of HTTP/2 whether the server still answers, and given up if not:
	// a server that hangs keeps its TCP connections alive. client-go's own 30 s and 15 s would leave new nodes unreachable so long.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// httpClient returns a client with bounded answers that follows no redirect. It calls silent when a connection says nothing any more.
func httpClient(r *rest.Config, silent func(context.Context, error)) (*http.Client, error) {
	h, err := rest.HTTPClientFor(r)
	if err != nil {
		return nil, err
	}
	t, err := innermost(h.Transport)
	if err != nil {
		return nil, err
	}
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	h.Transport = bounded{h.Transport, silent}
	h.CheckRedirect = func(r *http.Request, _ []*http.Request) error { return &redirectError{r.URL} }
	return h, nil
}

// redirectError is the error of a redirect. One that is followed takes the token of this node along, wherever it leads.
type redirectError struct{ to *url.URL }

// Error implements error.
func (e *redirectError) Error() string {
	to := url.URL{Scheme: e.to.Scheme, Host: e.to.Host, Path: e.to.Path}
	return fmt.Sprintf("the API server redirects to %.200q, which is not followed: give the address of the API server itself", to.String())
}

// innermost returns what makes the connections below client-go's wrappers.
func innermost(t http.RoundTripper) (*http.Transport, error) {
	for {
		switch inner := t.(type) {
		case *http.Transport:
			return inner, nil
		case utilnet.RoundTripperWrapper:
			t = inner.WrappedRoundTripper()
		default:
			return nil, fmt.Errorf("connections are made by a %T, and not by net/http", t)
		}
	}
}

// heard is the body of an answer that tells of a connection that says nothing any more.
type heard struct {
	io.ReadCloser
	ctx    context.Context // of the request
	silent func(context.Context, error)
}

// Read implements io.Reader.
func (h heard) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	if err != nil && err != io.EOF {
		h.silent(h.ctx, err)
	}
	return n, err
}

// noteSilence reports a request that ended because nothing came to StoreHealth and the log. client-go does not: it asks again by itself, or
// takes a watch for one that has ended.
func (s *Store) noteSilence(ctx context.Context, err error) {
	if ctx.Err() == nil && isSilence(err) {
		s.noteFailure(ctx, err)
	}
}

// noteFailure reports that the API server was not reached to StoreHealth, and to the log if it says nothing.
func (s *Store) noteFailure(ctx context.Context, err error) {
	if !isSilence(err) {
		s.Failed(err)
		return
	}
	err = fmt.Errorf("the API server does not answer: %w", err)
	s.Failed(err) // before the log: whoever reads that looks at the status next
	s.silence.note(ctx, askServer, err)
}

// isSilence reports whether a request ended because nothing came.
func isSilence(err error) bool {
	return utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded)
}

// askServer is what a silent server keeps from working.
const askServer = "ask the API server"
