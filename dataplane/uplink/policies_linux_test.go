package uplink

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPoliciesWithoutFiles: if it cannot be asked whether this host has IPsec policies, as this process may open no more files, there is no uplink:
// they would not see what goes by it.
func TestPoliciesWithoutFiles(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := openPolicies()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v", err)
	}
}
