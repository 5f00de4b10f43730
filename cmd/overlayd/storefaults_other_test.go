//go:build oldetcd

package main

import (
	"os"
	"testing"
)

// TestOtherEtcdStoreFaults is TestStoreFaults with the etcd of another version whose path is in OVERLAYD_ETCD.
func TestOtherEtcdStoreFaults(t *testing.T) {
	path := os.Getenv("OVERLAYD_ETCD")
	if path == "" {
		t.Fatal("OVERLAYD_ETCD is not set: run make test-etcd")
	}
	testStoreFaults(t, path, "restart, users true", "other password, users true")
}
