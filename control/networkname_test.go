package control_test

import (
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
)

func TestCheckNetworkName(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "red-2.x_y": true, "7": true, strings.Repeat("x", 63): true,
		"": false, ".": false, "..": false, "-a": false, "a/b": false, "a b": false, "é": false, "a\n": false, strings.Repeat("x", 64): false,
		"subnets": false, "subnets-b": false, "subnets2": false, "my-subnets": true, "overlayd": false, "config": false} {
		if err := control.CheckNetworkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestNetworkNameIsCheap: whoever may write to the store can make millions of names, each of which is looked at.
func TestNetworkNameIsCheap(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _ = control.CheckNetworkName("red-2.x_y") }); n > 0 {
		t.Errorf("%v allocations for a good name", n)
	}
}
