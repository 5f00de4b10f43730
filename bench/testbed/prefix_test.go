package testbed

import (
	"errors"
	"strings"
	"testing"
)

func TestDaemonIsRecognised(t *testing.T) {
	const prefix = Prefix("overlayd-demo-")
	args := func(a ...string) string { return strings.Join(a, "\x00") + "\x00" }
	const own, file = "/src/bin/overlayd", "/tmp/overlayd-demo-12/host1/subnet.env"
	for _, tt := range []struct {
		name, cmdline, exe string
		want               bool
	}{
		{"daemon", args("overlayd", "--iface", "eth0", "--subnet-file", file), own, true},
		{"rebuilt since", args("overlayd", "--subnet-file", file), own + " (deleted)", true},
		{"installed elsewhere", args("overlayd", "--subnet-file", file), "/usr/bin/overlayd", true},
		{"other program", args("grep", "--subnet-file", file), "/usr/bin/grep", false},
		{"real daemon", args("overlayd", "--subnet-file", "/run/flannel/subnet.env"), own, false},
		{"no value", args("overlayd", "--subnet-file"), own, false},
		{"no argument", "", own, false},
		{"kernel thread", "", "", false},
	} {
		if got := prefix.isDaemon(tt.cmdline, tt.exe, own); got != tt.want {
			t.Errorf("%s: recognised %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestLockHoldsOnce(t *testing.T) {
	const prefix = Prefix("overlayd-locktest-")
	lock, err := prefix.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prefix.Lock(); !errors.Is(err, ErrRunning) {
		t.Errorf("second lock: got %v, want %v", err, ErrRunning)
	}
	lock.Close()
	again, err := prefix.Lock()
	if err != nil {
		t.Fatalf("lock after the first was closed: %v", err)
	}
	again.Close()
}
