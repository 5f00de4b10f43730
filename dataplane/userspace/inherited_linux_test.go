package userspace

import (
	"runtime/debug"
	"testing"
)

// TestPortThatNobodyEntersClosesWhatItInherits: the sockets of a Port that ends before a network has entered are free.
func TestPortThatNobodyEntersClosesWhatItInherits(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close them some time
	h := newHost(t)
	stop := h.share()
	d := h.open()
	stopD := h.run(d)
	h.sync(d)
	exports, err := h.shared.Export()
	if err != nil {
		t.Fatal(err)
	}
	if err := stopD(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	h.shared = nil
	cfg := h.config()
	cfg.Inherited = exports
	var p *Port
	h.Must(func() (err error) { p, err = NewPort(cfg); return err })
	if err := h.runner(p.Run)(); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(func() error {
		d, err := Open(h.config())
		if err == nil {
			d.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for _, e := range exports {
		if _, err := e.File.Stat(); err == nil {
			t.Errorf("%s is still open", e.Name)
		}
	}
}

// TestOpenOnEndedPortClosesQueues: a network that cannot enter its Port holds no queue.
func TestOpenOnEndedPortClosesQueues(t *testing.T) {
	h := newHost(t)
	stop := h.share()
	d := h.open()
	stopD := h.run(d)
	h.sync(d)
	exports, err := d.Export()
	if err != nil {
		t.Fatal(err)
	}
	if err := stopD(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	cfg := h.config() // of the Port that has ended
	cfg.Inherited = exports
	if err := h.Do(func() error { _, err := Open(cfg); return err }); err == nil {
		t.Fatal("opened")
	}
	for _, e := range exports {
		if _, err := e.File.Stat(); err == nil {
			t.Errorf("%s is still open", e.Name)
		}
	}
}
