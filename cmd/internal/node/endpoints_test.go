package node

import (
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// ofStranger is the endpoint of a port that another user has, as far as the first try can tell.
func ofStranger(at string) Endpoint {
	return Endpoint{Name: "healthz", At: at, Handler: func(*Daemon) http.Handler { return http.NotFoundHandler() }, Listen: func() (net.Listener, error) {
		return nil, &tcpport.TakenError{Users: []string{"65534"}, Listens: true}
	}}
}

// TestGiveBesidePortTaken: a daemon hands over the listeners that it has, under their own names, and waits for no port from then on.
func TestGiveBesidePortTaken(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	open := ofStranger("")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open.Name, open.At, open.Listen = "metrics", l.Addr().String(), func() (net.Listener, error) { return l, nil }
	w.cfg.Endpoints = []Endpoint{ofStranger(other.Addr().String()), open}
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	if all := w.daemon.Endpoints(); len(all) != 2 || all[0].Listening || all[0].Err != "a process of user 65534 has the port" || !all[1].Listening {
		t.Errorf("endpoints %+v", all)
	}
	legacy, err := w.daemon.giver.Give(handover.Question{All: true})
	if err != nil {
		t.Fatal(err)
	}
	names := carrier.NamesOf(legacy.Exports)
	if carrier.CloseExports(legacy.Exports); !slices.Contains(names, handover.ListenerName(open.At)) || slices.Contains(names, handover.ListenerName(other.Addr().String())) {
		t.Errorf("handed over %q", names)
	}
	e := w.daemon.endpoints[0]
	if err := w.daemon.open(e, func() (net.Listener, error) { t.Error("opened"); return nil, errDown }, nil); err != nil || e.isOpen() {
		t.Errorf("the port of the next daemon: %v", err)
	}
	w.daemon.giver.Given(nil)
	if err := w.ended(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestPortOfNoHost: what is wrong with a port that was taken and is free now is said, and the daemon goes on.
func TestPortOfNoHost(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.Endpoints = []Endpoint{ofStranger("192.0.2.77:8081")}
	w.setConfig(w.config(0, ""))
	w.start()
	w.await("a warning", func() bool { return w.log.count("cannot listen at a TCP port of this daemon") == 1 })
	w.awaitReady()
	w.cancel()
	if err := w.ended(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
