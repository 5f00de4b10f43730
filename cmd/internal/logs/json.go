package logs

import (
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
)

// readable gives a value in JSON the text that it has in the text format. Without it a duration would be a number of
// nanoseconds, and what has a String method, such as a reason or a network address, whatever it is made of.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindAny:
		a.Value = slog.AnyValue(readableValue(a.Value.Any()))
	}
	return a
}

// readableValue leaves what has a JSON form of its own, and the elements of a list in a list.
func readableValue(v any) any {
	r := reflect.ValueOf(v)
	if !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil() {
		return nil
	}
	switch v := v.(type) {
	case error:
		return v.Error()
	case json.Marshaler, encoding.TextMarshaler:
		return v
	case fmt.Stringer:
		return v.String()
	}
	if r.Kind() != reflect.Slice && r.Kind() != reflect.Array {
		return v
	}
	list := make([]any, r.Len())
	for i := range list {
		list[i] = readableValue(r.Index(i).Interface())
	}
	return list
}
