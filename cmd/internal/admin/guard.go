package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// Guard is what GuardRoutes switch: the guard of a daemon.
type Guard interface {
	GuardIsOn() bool
	SwitchGuard(on bool) error
}

// GuardRoutes show and switch the guard.
func GuardRoutes(g Guard, log *slog.Logger) []Route {
	const path = "/v1/guard"
	show := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, onOff(g.GuardIsOn())) }
	set := func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		to := strings.TrimSpace(string(text))
		if err != nil || to != "on" && to != "off" {
			http.Error(w, fmt.Sprintf("guard %.40q: want on or off", to), http.StatusBadRequest)
			return
		}
		if err := g.SwitchGuard(to == "on"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		log.Warn("guard switched by a client of the admin socket", "to", to, "uid", CallerOf(r).UID, "pid", CallerOf(r).PID)
		show(w, r)
	}
	return []Route{
		{Pattern: "GET " + path, Handler: http.HandlerFunc(show)},
		{Pattern: "PUT " + path, Root: true, Handler: http.HandlerFunc(set)},
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
