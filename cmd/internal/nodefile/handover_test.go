package nodefile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// TestHandOver: the lock passes to the next daemon without a moment in which a third could have it; what is no such
// lock is closed, and the file claimed as usual.
func TestHandOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := n.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Remember(Left{VNIs: []uint32{9}}); err != nil {
		t.Error(err)
	}
	n.Release()
	if _, err := Claim(file); !errors.As(err, new(*RunningError)) {
		t.Errorf("a third daemon got %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Claim(file, append(lock, carrier.Export{File: null})...)
	if err != nil || next.ID != n.ID || len(next.Left.VNIs) > 0 {
		t.Fatalf("got %+v, %v", next, err)
	}
	if null.Close() == nil {
		t.Error("what is no lock was still open")
	}
	if err := next.Remember(Left{VNIs: []uint32{7}}); err != nil {
		t.Error(err)
	}
	next.Release()
	again, err := Claim(file)
	if err != nil || again.ID != n.ID || len(again.Left.VNIs) != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
	again.Release()
}
