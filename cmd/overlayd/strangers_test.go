package main

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/admin"
)

// TestStatusOfStrangers: whatever answers at the admin socket in the place of a daemon costs one sentence.
func TestStatusOfStrangers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		code   int
		exit   int
		says   string
	}{
		"half of it":      {`{"v":1,"verdict":{"state":"hea`, http.StatusOK, exitFailure, "is not a status: unexpected end"},
		"too much":        {`{"v":1,"host":"` + strings.Repeat("x", 10<<20) + `"}`, http.StatusOK, exitFailure, "more than 8 MB"},
		"no JSON":         {"<html>", http.StatusOK, exitFailure, "is not a status"},
		"an older daemon": {"404 page not found", http.StatusNotFound, exitFailure, "does not know /v1/status"},
		"another version": {`{"v":99}`, http.StatusOK, exitFailure, "version 99"},
		"nothing":         {"", http.StatusOK, exitFailure, "is not a status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "subnet.env")
			l, err := net.Listen("unix", admin.Path(file))
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				fmt.Fprint(w, c.answer)
			})}
			go server.Serve(l)
			defer server.Close()
			code, out := overlayd(t, "status", "--subnet-file", file)
			if code != c.exit || !strings.Contains(out, c.says) || len(out) > 1000 || strings.Count(out, "\n") > 3 {
				t.Errorf("exit code %d, want %d and %q:\n%.2000s", code, c.exit, c.says, out)
			}
		})
	}
}
