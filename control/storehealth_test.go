package control_test

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
)

// TestStoreHealth: Since is when the state began, whatever the texts of an error in between.
func TestStoreHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &control.StoreHealth{Kind: "etcd"}
		if got := h.Status(); !reflect.DeepEqual(got, control.StoreStatus{Kind: "etcd"}) {
			t.Errorf("before any call: %+v", got)
		}
		begin := time.Now()
		at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
		for i, step := range []struct {
			report func()
			want   control.StoreStatus
		}{
			{func() { h.Failed(errors.New("refused")) }, control.StoreStatus{Err: "refused", Since: at(1)}},
			{func() { h.Failed(errors.New("timeout")) }, control.StoreStatus{Err: "timeout", Since: at(1)}},
			{func() { h.Answered(7, nil) }, control.StoreStatus{Connected: true, Revision: 7, Since: at(3), LastAnswer: at(3)}},
			{func() { h.Answered(0, nil) }, control.StoreStatus{Connected: true, Revision: 7, Since: at(3), LastAnswer: at(4)}},
			{func() { h.Answered(0, errors.New("denied\n")) },
				control.StoreStatus{Connected: true, Err: `denied\n`, Revision: 7, Since: at(5), LastAnswer: at(5)}},
			{func() { h.Failed(errors.New("gone")) }, control.StoreStatus{Err: "gone", Revision: 7, Since: at(6), LastAnswer: at(5)}},
			{func() { h.Heard(0) }, control.StoreStatus{Connected: true, Revision: 7, Since: at(7), LastAnswer: at(7)}},
			{func() { h.Answered(0, control.ErrUser) }, control.StoreStatus{Connected: true, Err: control.ErrUser.Error(), Refusal: true, Revision: 7, Since: at(8), LastAnswer: at(8)}},
			{func() { h.Heard(9) }, control.StoreStatus{Connected: true, Err: control.ErrUser.Error(), Refusal: true, Revision: 9, Since: at(8), LastAnswer: at(9)}},
			{func() { h.Answered(9, nil) }, control.StoreStatus{Connected: true, Revision: 9, Since: at(10), LastAnswer: at(10)}},
		} {
			time.Sleep(time.Second)
			step.report()
			step.want.Kind = "etcd"
			if got := h.Status(); !reflect.DeepEqual(got, step.want) {
				t.Errorf("step %d: %+v\nwant %+v", i, got, step.want)
			}
		}
	})
}
