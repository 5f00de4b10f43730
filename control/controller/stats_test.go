package controller_test

import (
	"reflect"
	"testing"

	"github.com/overlayd/overlayd/control/controller"
)

// TestPlus: what counts is added, all of it; what is of now stays.
func TestPlus(t *testing.T) {
	var now, before controller.Stats
	n, b := reflect.ValueOf(&now).Elem(), reflect.ValueOf(&before).Elem()
	for i := range n.NumField() {
		if n.Field(i).Kind() == reflect.Int {
			n.Field(i).SetInt(int64(i + 1))
			b.Field(i).SetInt(1000)
			continue
		}
		n.Field(i).SetUint(uint64(i + 1))
		b.Field(i).SetUint(uint64(100 * (i + 1)))
	}
	sum := reflect.ValueOf(now.Plus(before))
	for i := range sum.NumField() {
		want := i + 1
		if sum.Field(i).Kind() == reflect.Uint64 {
			want = 101 * (i + 1)
		}
		if got := sum.Field(i); got.CanInt() && got.Int() != int64(want) || got.CanUint() && got.Uint() != uint64(want) {
			t.Errorf("%s is %v, want %d", sum.Type().Field(i).Name, got, want)
		}
	}
}
