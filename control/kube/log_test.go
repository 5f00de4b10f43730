package kube

import (
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
