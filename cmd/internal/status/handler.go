package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Handler answers /livez and /healthz with 200 as long as the process can, and /readyz with 200 or
// 503, as flannel does (flannel v0.28.9). With ?verbose, /livez and /readyz list what they look at, each with ok or the
// reason.
func Handler(ready func() bool, checks func() []Check) http.Handler {
	verboseReady := Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { verbose(w, "readyz", checks()) }))
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) {
		if isVerbose(r) {
			verbose(w, "livez", []Check{{Name: "ping"}})
			return
		}
		alive(w, r)
	})
	mux.HandleFunc("/healthz", alive)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case isVerbose(r):
			verboseReady.ServeHTTP(w, r)
		case ready():
			answer(w, http.StatusOK, "overlayd is ready\n")
		default:
			answer(w, http.StatusServiceUnavailable, "overlayd is not ready yet\n")
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, "there are /livez, /healthz and /readyz\n")
	})
	return ReadOnly(mux)
}

func isVerbose(r *http.Request) bool { return r.URL.Query().Has("verbose") }

func alive(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, "overlayd is running\n")
}

// ReadOnly refuses every method that could change something.
func ReadOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			answer(w, http.StatusMethodNotAllowed, "want GET\n")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// Nobody may hold a connection, or the daemon's end, for long, nor keep others out.
const (
	timeout  = 5 * time.Second
	shutdown = time.Second
	maxConns = 128
)

// Serve answers with h on l until stop is called. It calls died if the server ends before that.
func Serve(l net.Listener, h http.Handler, died func(error)) (stop func()) {
	l = newLimited(l)
	server := &http.Server{Handler: h, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout, MaxHeaderBytes: 1 << 13}
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			died(err)
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdown)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		wait.Wait()
	}
}
