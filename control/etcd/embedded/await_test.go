package embedded

import (
	"strings"
	"testing"
	"time"
)

// TestAwaitWithADatabaseThatHangs: the wait for etcd has an end also if the database does not answer, as on a disk that hangs.
func TestAwaitWithADatabaseThatHangs(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), ListenClient: "http://" + FreeAddress(t), NoFsync: true}
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	hung := s.etcd.Server.Backend().ReadTx().(interface {
		Lock()
		Unlock()
	})
	hung.Lock()
	defer hung.Unlock()
	cfg.startTimeout, cfg.lookPeriod = 100*time.Millisecond, time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- s.await(t.Context(), cfg) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "not ready after 100ms") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the database")
	}
}
