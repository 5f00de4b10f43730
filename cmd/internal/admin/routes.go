package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// Route is one thing that can be asked for.
type Route struct {
	Pattern string // of http.ServeMux: "GET /v1/status"
	Root    bool   // only root may ask
	Handler http.Handler
}

// handler answers all routes.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.cfg.Routes {
		mux.Handle(r.Pattern, s.only(r))
	}
	return s.shield(mux)
}

// only refuses callers that may not use a route.
func (s *Server) only(route Route) http.Handler {
	if !route.Root {
		return route.Handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := CallerOf(r)
		if who.UID == 0 {
			route.Handler.ServeHTTP(w, r)
			return
		}
		s.count(func(st *status.Admin) { st.Refused++ })
		s.warn("a request at the admin socket is refused", fmt.Errorf("%s %s is for root", r.Method, r.URL.Path), "uid", who.UID, "pid", who.PID)
		http.Error(w, fmt.Sprintf("%s %s is for root: you have uid %d", r.Method, r.URL.Path, who.UID), http.StatusForbidden)
	})
}

// shield bounds requests, and keeps a fault of a handler from ending the daemon.
func (s *Server) shield(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(callerKey{}).(*conn); ok {
			defer s.conns.work(c)()
		}
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.count(func(st *status.Admin) { st.Panics++ })
				s.warn("a request at the admin socket failed", fmt.Errorf("%s %s: %v", r.Method, r.URL.Path, p), "fix", "report it: this is a fault of overlayd")
				panic(http.ErrAbortHandler) // the connection ends, and nothing else
			}
		}()
		s.count(func(st *status.Admin) { st.Requests++ })
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		h.ServeHTTP(w, r)
	})
}

// JSON answers with what value returns. One answer is made at a time, so that many clients take no more of the
// machine than one. Root does not wait for the others.
func JSON(value func(*http.Request) any) http.Handler {
	var root, others sync.Mutex
	answer := func(r *http.Request) ([]byte, error) {
		turn := &others
		if CallerOf(r).UID == 0 {
			turn = &root
		}
		turn.Lock()
		defer turn.Unlock()
		return json.Marshal(value(r))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := answer(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // the client has gone
	})
}

// LogLevelRoutes shows and sets a level.
func LogLevelRoutes(level *slog.LevelVar, log *slog.Logger) []Route {
	const path = "/v1/loglevel"
	show := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.ToLower(level.Level().String()))
	}
	set := func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		next, ok := levelOf(strings.TrimSpace(string(text)))
		if err != nil || !ok {
			http.Error(w, fmt.Sprintf("log level %.40q: want debug, info, warn or error", text), http.StatusBadRequest)
			return
		}
		before := level.Level()
		level.Set(next)
		log.Log(r.Context(), max(before, next, slog.LevelInfo), "log level set by a client of the admin socket",
			"level", next, "was", before, "uid", CallerOf(r).UID, "pid", CallerOf(r).PID)
		show(w, r)
	}
	return []Route{
		{Pattern: "GET " + path, Handler: http.HandlerFunc(show)},
		{Pattern: "PUT " + path, Root: true, Handler: http.HandlerFunc(set)},
	}
}

// levelOf reads one of the four levels.
func levelOf(text string) (slog.Level, bool) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(text, l.String()) {
			return l, true
		}
	}
	return 0, false
}

// ProfileRoutes are those of net/http/pprof but for the command line, which may hold a password.
func ProfileRoutes() []Route {
	const path = "/debug/pprof/"
	return []Route{
		{Pattern: "GET " + path, Root: true, Handler: http.HandlerFunc(pprof.Index)},
		{Pattern: "GET " + path + "profile", Root: true, Handler: http.HandlerFunc(pprof.Profile)},
		{Pattern: "GET " + path + "symbol", Root: true, Handler: http.HandlerFunc(pprof.Symbol)},
		{Pattern: "GET " + path + "trace", Root: true, Handler: http.HandlerFunc(pprof.Trace)},
	}
}
