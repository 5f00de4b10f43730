package sysctl

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestUnreadable: a setting that cannot be read for want of files is not said to be off, and the fix is about files. Once it can, nobody is
// said to have changed it.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Run("ip", "link", "add", "flannel.7", "type", "bridge")
	var log netnstest.Log
	ns.Must(func() error {
		s, err := Open(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), VNI: 7, IPv4: true, IPv6: true})
		if err != nil {
			return err
		}
		defer s.Close()
		s.look()
		s.read = func(file string) ([]byte, error) { return nil, &os.PathError{Op: "open", Path: file, Err: unix.EMFILE} }
		s.look()
		s.look()
		if st := s.Status(); st.State != dataplane.StateDegraded || len(st.Warnings) != 0 || !strings.Contains(st.Err, "read sysctl net.ipv4.ip_forward: open /proc/") {
			t.Errorf("status %+v", st)
		}
		s.read = os.ReadFile
		s.look()
		if st := s.Status(); st.State != dataplane.StateOK {
			t.Errorf("status %+v", st)
		}
		return nil
	})
	text := log.String()
	if strings.Contains(text, "sysctl -w") || strings.Contains(text, "is off") || strings.Contains(text, "repaired") ||
		log.Count("read sysctl net.ipv4.ip_forward: open") != 1 || log.Count("LimitNOFILE=") == 0 {
		t.Errorf("log:\n%s", text)
	}
}
