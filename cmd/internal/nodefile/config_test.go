package nodefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfig: the next daemon, and one that could not claim the file at first, know the config of the last session, unless the line was cut off.
func TestConfig(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	n, err := Claim(subnetFile)
	if err != nil {
		t.Fatal(err)
	}
	const config = `{"Network":"10.5.0.0/16"}`
	for _, c := range []string{"{}", config} {
		if err := n.UseConfig(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.UseConfig(strings.Repeat("x", maxConfigText+1)); err != nil || n.LastConfig() != config {
		t.Errorf("%v, %q after one that is too long", err, n.LastConfig())
	}
	n.Release()
	late := Unclaimed(subnetFile)
	if err := late.Settle(); err != nil || late.LastConfig() != config {
		t.Errorf("late: %v, %q, want %q", err, late.LastConfig(), config)
	}
	late.Release()
	whole, err := os.ReadFile(Path(subnetFile))
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(whole), config)
	for cut, want := range map[int]string{len(whole): config, at + 5: ""} {
		if err := os.WriteFile(Path(subnetFile), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := Claim(subnetFile)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.LastConfig(); got != want {
			t.Errorf("of %d bytes: %q, want %q", cut, got, want)
		}
		n.Release()
	}
}
