package main

import (
	"strings"
	"testing"
)

// TestHelpGroups: --help shows every flag once, below the title of its group.
func TestHelpGroups(t *testing.T) {
	code, out := overlayd(t, "--help")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	at := 0
	for _, title := range []string{"Dataplane:", "Network and subnet:", "etcd:", "Kubernetes:", "Underlay:", "Traffic rules and routes:", "Process:"} {
		i := strings.Index(out, "\n"+title+"\n")
		if i < at {
			t.Errorf("%q is not where it should be", title)
		}
		at = i
	}
	for _, flag := range []string{"--dataplane", "--networks", "--etcd-password-file", "--kube-api-url", "--public-ipv6", "--ip-masq", "--healthz-port", "-h, --help"} {
		if n := strings.Count(out, "      "+flag+" ") + strings.Count(out, "  "+flag+" "); n < 1 {
			t.Errorf("%s is not shown:\n%s", flag, out)
		}
	}
	if strings.Contains(out, "vmodule") || strings.Contains(out, "debug-offloads") {
		t.Error("hidden flags are shown")
	}
	for line := range strings.Lines(out) {
		if len(line) > helpWidth+1 {
			t.Errorf("line of %d characters: %s", len(line), line)
		}
	}
}
