package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadClientCut: what is left of a join file that ends anywhere cannot be used, and the error shows no key.
func TestReadClientCut(t *testing.T) {
	_, text := join(t, newDir(t), "a")
	path := filepath.Join(t.TempDir(), "cut.pem")
	end := len(strings.TrimSpace(string(text)))
	for n := 0; n <= len(text); n += 7 {
		if err := os.WriteFile(path, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		switch own, err := ReadClient(path, path, path); {
		case (err == nil) != (n >= end) || (own != nil) != (err == nil):
			t.Errorf("%d of %d bytes: %v", n, len(text), err)
		case err != nil && (!strings.Contains(err.Error(), path) || len(err.Error()) > len(path)+200):
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
