package testbed

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseLease(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       Lease
		err        string
	}{
		{"whole file", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
			Lease{netip.MustParsePrefix("10.244.7.1/24"), 1450}, ""},
		{"empty", "", Lease{}, "FLANNEL_SUBNET"},
		{"no room for a pod", "FLANNEL_SUBNET=10.244.7.1/31\nFLANNEL_MTU=1450\n", Lease{}, "FLANNEL_SUBNET"},
		{"no MTU", "FLANNEL_SUBNET=10.244.7.1/24\n", Lease{}, "FLANNEL_MTU"},
		{"MTU of nothing", "FLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=0\n", Lease{}, "FLANNEL_MTU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseLease(tt.text)
			if got != tt.want || (err != nil) != (tt.err != "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func TestReadLease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	if _, err := ReadLease(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v, want %v", err, fs.ErrNotExist)
	}
	if err := os.WriteFile(file, []byte("FLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadLease(file); err != nil || got.Pod().String() != "10.244.7.2" {
		t.Errorf("got pod %s, %v", got.Pod(), err)
	}
}
