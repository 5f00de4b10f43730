package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// TestRootIsAdmitted: users with one connection each do not keep root out.
func TestRootIsAdmitted(t *testing.T) {
	t.Parallel()
	var c conns
	for i := range maxConns {
		k := &conn{UnixConn: new(net.UnixConn), who: Caller{UID: 100000 + uint32(i)}, conns: &c}
		c.open = append(c.open, k)
	}
	root := &conn{UnixConn: new(net.UnixConn), who: Caller{UID: 0}, conns: &c}
	if v := c.victim(root); v == root {
		t.Error("root makes room for another user")
	}
}

// TestRootDoesNotWait: root gets its answer while that for another user is made, and the others wait for each other.
func TestRootDoesNotWait(t *testing.T) {
	t.Parallel()
	making, release := make(chan struct{}, 2), make(chan struct{})
	h := JSON(func(r *http.Request) any {
		if CallerOf(r).UID != 0 {
			making <- struct{}{}
			<-release
		}
		return "answer"
	})
	ask := func(uid uint32) {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), callerKey{}, &conn{who: Caller{UID: uid}}), "GET", "/", nil)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	var asked sync.WaitGroup
	for range 2 {
		asked.Go(func() { ask(1000) })
	}
	<-making
	root := make(chan struct{})
	go func() { ask(0); close(root) }()
	select {
	case <-root:
	case <-time.After(5 * time.Second):
		t.Error("root waits for the answer of another user")
	}
	if len(making) > 0 {
		t.Error("two answers are made at once")
	}
	close(release)
	asked.Wait()
	<-root
}
