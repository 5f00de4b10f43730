package leftovers

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestFindBeside: only a flanneld of the same network is found, by its subnet file or subnet, and named.
func TestFindBeside(t *testing.T) {
	t.Parallel()
	const same, another = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n", "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.1.1/24\n"
	for _, c := range []struct {
		name      string
		file      string // of flanneld, behind that of the daemon
		text      string // what is in it
		elsewhere bool   // in another network namespace
		want      bool
	}{
		{"the same file", "", same, false, true},
		{"the same file, in another namespace", "", same, true, false},
		{"another file, the same subnet", ".other", same, false, true},
		{"another network", ".other", another, false, false},
		{"a file that is not written yet", ".other", "", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			file := filepath.Join(t.TempDir(), "subnet.env")
			for name, text := range map[string]string{file: same, file + c.file: c.text} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			at := ns
			if c.elsewhere {
				at = netnstest.New(t)
			}
			pid := processtest.Flanneld(t, at.Start, "-subnet-file", file+c.file)
			var found []dataplane.Warning
			ns.Must(func() (err error) { found, err = FindBeside(file, prefixes("10.5.1.0/24"), false); return err })
			if !c.want && len(found) > 0 {
				t.Errorf("found %+v", found)
			}
			if c.want && (len(found) != 1 || found[0].ID != "flanneld" || !strings.Contains(found[0].Text, fmt.Sprintf("flanneld (process %d)", pid)) || found[0].Fix == "") {
				t.Errorf("found %+v, want process %d", found, pid)
			}
		})
	}
}

// TestBeside: a flanneld that starts later is found after a hint, and the warning ends with it. The log has both.
func TestBeside(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	writeSubnetFile(t, file)
	var log netnstest.Log
	b := NewBeside(slog.New(slog.NewTextHandler(&log, nil)), file)
	done := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		done <- ns.Do(func() error { b.Run(ctx, func() []netip.Prefix { return nil }); return nil })
	}()
	await := func(text string) {
		for end := time.Now().Add(30 * time.Second); log.Count(text) == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not logged:\n%s", text, log.String())
			}
		}
	}
	t.Run("while it runs", func(t *testing.T) {
		pid := processtest.Flanneld(t, ns.Start, "-subnet-file", file)
		b.Hint()
		await(fmt.Sprintf("level=WARN msg=\"flanneld (process %d) runs for the same network", pid))
		if w := b.Warnings(); len(w) != 1 {
			t.Errorf("warnings %+v", w)
		}
	})
	await("msg=\"resolved: flanneld")
	if w := b.Warnings(); len(w) > 0 {
		t.Errorf("warnings %+v", w)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
