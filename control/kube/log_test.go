package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestFailuresThatComeAndGo: of what fails and succeeds by turns the log has the first failure and its end.
func TestFailuresThatComeAndGo(t *testing.T) {
	var log strings.Builder
	f := &failures{log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 30 {
		for _, err := range []error{errors.New("refused"), errors.New("refused"), nil, nil} {
			f.note(t.Context(), "list nodes", err)
		}
	}
	if failed, works := strings.Count(log.String(), "trying again"), strings.Count(log.String(), "works again"); failed != 1 || works != 1 {
		t.Errorf("%d failures and %d ends, want one of each:\n%s", failed, works, log.String())
	}
}

// TestEndIsNoFailure: that the daemon ends while it marks the Node is not logged.
func TestEndIsNoFailure(t *testing.T) {
	var log strings.Builder
	s, err := Open(t.Context(), Config{APIURL: "http://127.0.0.1:1", NodeName: "n", SetNodeNetworkUnavailable: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.MarkReady(ended); err == nil || log.Len() > 0 {
		t.Errorf("%v, and logged %s", err, log.String())
	}
}
