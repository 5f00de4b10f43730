package dataplane

import (
	"reflect"
	"testing"
)

// numbers calls f for each counter of s.
func numbers(s *Stats, f func(reflect.Value)) {
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Uint64:
			f(v)
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(s).Elem())
}

// TestAddLeavesNoCounterOut: the sum has each counter of both, at its place, and Less takes it away again.
func TestAddLeavesNoCounterOut(t *testing.T) {
	var a, b Stats
	n := uint64(0)
	numbers(&a, func(v reflect.Value) { n++; v.SetUint(n) })
	numbers(&b, func(v reflect.Value) { n++; v.SetUint(n * n) })
	before, i, first := n/2, uint64(0), a
	a.Add(b)
	numbers(&a, func(v reflect.Value) {
		i++
		if want := i + (before+i)*(before+i); v.Uint() != want {
			t.Errorf("counter %d is %d, want %d", i, v.Uint(), want)
		}
	})
	if i < NumDrops+8 {
		t.Errorf("only %d counters were seen", i)
	}
	if a.Less(b); a != first {
		t.Errorf("what was added is not taken away: %+v, want %+v", a, first)
	}
}
