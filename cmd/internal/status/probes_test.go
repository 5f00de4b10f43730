package status

import (
	"reflect"
	"slices"
	"testing"
)

// TestProbeCountsPlus: every counter is added, so that none falls when a session ends.
func TestProbeCountsPlus(t *testing.T) {
	var one, want ProbeCounts
	for i, v := range []*ProbeCounts{&one, &want} {
		n := uint64(1 + 2*i) // what is one, and thrice one
		for f := range reflect.ValueOf(v).Elem().NumField() {
			switch f := reflect.ValueOf(v).Elem().Field(f); f.Kind() {
			case reflect.Uint64:
				f.SetUint(n)
			case reflect.Array:
				for j := range f.Len() {
					f.Index(j).SetUint(n)
				}
			default:
				t.Fatalf("%s", f.Kind())
			}
		}
	}
	if got := one.Plus(one).Plus(one); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestRTTBounds: the bounds rise, and there is one bucket more.
func TestRTTBounds(t *testing.T) {
	bounds := RTTBounds()
	if !slices.IsSorted(bounds[:]) || bounds[0] <= 0 || len(ProbeCounts{}.RTTs) != len(bounds)+1 {
		t.Errorf("%v", bounds)
	}
}
