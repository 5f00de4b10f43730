package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// health is which networks are ready, and an HTTP server that tells. The zero value of
// a network that is expected is not ready.
type health struct {
	mu    sync.Mutex
	ready map[string]bool // by the name of the network
}

// unknown stands for the networks while it is not known which there are. It is also the name of
// the only network of a daemon, which has none.
const unknown = ""

// newHealth is not ready.
func newHealth() *health { return &health{ready: map[string]bool{unknown: false}} }

// expect makes the daemon not ready until setReady is called for the network.
func (h *health) expect(network string) { h.setReady(network, false) }

// setReady reports whether all networks are ready now.
func (h *health) setReady(network string, ready bool) (all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready[network] = ready
	return h.all()
}

// forget makes the network of no concern any more.
func (h *health) forget(network string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ready, network)
}

func (h *health) all() bool {
	for _, ready := range h.ready {
		if !ready {
			return false
		}
	}
	return true
}

// ServeHTTP answers /healthz with 200 as long as it can, and /readyz with 200 or 503, as flannel
// does (flannel v0.28.9).
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, text := http.StatusOK, ""
	switch r.URL.Path {
	case "/healthz":
		text = "overlayd is running\n"
	case "/readyz":
		h.mu.Lock()
		ready := h.all()
		h.mu.Unlock()
		if text = "overlayd is ready\n"; !ready {
			status, text = http.StatusServiceUnavailable, "overlayd is not ready yet\n"
		}
	default:
		status, text = http.StatusNotFound, "there are /healthz and /readyz\n"
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		status, text = http.StatusMethodNotAllowed, "want GET\n"
	}
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// Nobody may hold a connection, or the daemon's end, for long.
const (
	healthTimeout  = 5 * time.Second
	healthShutdown = time.Second
)

var errHealthDied = errors.New("health endpoint died")

// serve answers at ip and port until stop is called; port 0 does nothing. It calls
// fail if the server dies before that.
func (h *health) serve(ip string, port int, fail context.CancelCauseFunc) (stop func(), err error) {
	if port == 0 {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--healthz-ip %s --healthz-port %d: %w", ip, port, err)
	}
	server := &http.Server{Handler: h, ReadTimeout: healthTimeout, WriteTimeout: healthTimeout, IdleTimeout: healthTimeout, MaxHeaderBytes: 1 << 13}
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("%w: %w", errHealthDied, err))
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), healthShutdown)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		wait.Wait()
	}, nil
}
