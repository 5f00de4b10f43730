package etcdrpc

import (
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestLongKeys: of keys that are too long and begin alike a list has the first alone and goes on behind them, and a stream cuts them.
func TestLongKeys(t *testing.T) {
	const from = "/p/"
	alike := from + strings.Repeat("x", maxKey)
	long, longer, other := alike+"a", alike+strings.Repeat("b", 1<<20), from+strings.Repeat("y", maxKey+1)
	for name, tt := range map[string]struct {
		page, want []string
		behind     string
		cut        []string
	}{
		"short":             {[]string{from, from + "a", alike}, []string{from, from + "a", alike}, "", []string{from, from + "a", alike}},
		"long ones at last": {[]string{from + "a", alike, long, longer}, []string{from + "a", alike, long}, alike[:len(alike)-1] + "y", []string{from + "a", alike, alike, alike}},
		"two beginnings":    {[]string{long, longer, other}, []string{long, other}, other[:len(other)-2] + "z", []string{alike, alike, other[:len(other)-1]}},
		"long ones before":  {[]string{long, longer, from + "z"}, []string{long, from + "z"}, "", []string{alike, alike, from + "z"}},
	} {
		var kvs []*mvccpb.KeyValue
		var events []*mvccpb.Event
		for _, key := range tt.page {
			kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(key)})
			events = append(events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key)}})
		}
		kept, behind := dropLong(from, kvs)
		var got, cut []string
		for _, kv := range kept {
			got = append(got, string(kv.Key))
		}
		if !slices.Equal(got, tt.want) || behind != tt.behind {
			t.Errorf("%s: a list has %.20q and goes on at ...%.3q", name, got, behind[max(0, len(behind)-3):])
		}
		cutEvents([]KeyRange{PrefixRange("/q/"), PrefixRange(from)}, events)
		for _, e := range events {
			cut = append(cut, string(e.Kv.Key))
		}
		if !slices.Equal(cut, tt.cut) {
			t.Errorf("%s: a stream has %.20q", name, cut)
		}
	}
}
