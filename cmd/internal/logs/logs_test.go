package logs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// nobody is an error of which there is a pointer to none.
type nobody struct{}

func (*nobody) Error() string { return "nobody" }

// TestJSONValues: what is text in the text format is text in JSON, and a list is a list of texts.
func TestJSONValues(t *testing.T) {
	t.Parallel()
	mac := encap.MAC{2, 4, 0, 0, 0, 1}
	subnet, addr := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParseAddr("192.0.2.1")
	peer := &dataplane.PeerError{Peer: dataplane.Peer{VTEP: dataplane.VTEP{Addr: addr}, Subnets: []netip.Prefix{subnet}}, Err: errors.New("down")}
	for _, c := range []struct{ value, want any }{
		{"text", "text"},
		{true, true},
		{7, 7.0},
		{nil, nil},
		{mac, "02:04:00:00:00:01"},
		{[]encap.MAC{mac}, []any{"02:04:00:00:00:01"}},
		{[1]encap.MAC{mac}, []any{"02:04:00:00:00:01"}},
		{addr, "192.0.2.1"},
		{netip.Addr{}, ""},
		{[]netip.Prefix{subnet}, []any{"10.5.1.0/24"}},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "192.0.2.1:7"},
		{dataplane.DropBadSource, "bad_source"},
		{[]control.Need{{Addr: addr, What: "the gateway"}}, []any{"192.0.2.1, the gateway"}},
		{1500 * time.Millisecond, "1.5s"},
		{time.Unix(0, 0).UTC(), "1970-01-01T00:00:00Z"},
		{peer, "peer 192.0.2.1 [10.5.1.0/24]: down"},
		{[]error{peer}, []any{"peer 192.0.2.1 [10.5.1.0/24]: down"}},
		{errors.Join(errors.New("a"), errors.New("b")), "a\nb"},
		{(*nobody)(nil), nil},
		{(*net.TCPAddr)(nil), nil},
		{dataplane.Change{Op: dataplane.OpAdd, Kind: "route", Key: "x"}, map[string]any{"op": "add", "kind": "route", "key": "x", "was": "", "is": ""}},
	} {
		var out bytes.Buffer
		logs.New(&out, logs.Config{JSON: true, Level: slog.LevelInfo}).Info("m", "v", c.value)
		var line struct{ V any }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || !reflect.DeepEqual(line.V, c.want) {
			t.Errorf("%T %v: got %#v (%v), want %#v", c.value, c.value, line.V, err, c.want)
		}
	}
}

// TestLevelChanges: the level is that of the moment, in each format, and of logs that were derived before.
func TestLevelChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []logs.Config{{}, {JSON: true}, {Journal: true}, {JSON: true, Journal: true}} {
		var out bytes.Buffer
		level := new(slog.LevelVar)
		c.Level = level
		log := logs.New(&out, c)
		derived := log.With("network", "a").WithGroup("g")
		for _, step := range []struct {
			level slog.Level
			lines int
		}{{slog.LevelInfo, 4}, {slog.LevelDebug, 6}, {slog.LevelError, 0}} {
			level.Set(step.level)
			out.Reset()
			for _, l := range []*slog.Logger{log, derived} {
				l.Debug("d")
				l.Info("i")
				l.Warn("w")
			}
			if got := strings.Count(out.String(), "\n"); got != step.lines {
				t.Errorf("%+v at %v: %d lines, want %d:\n%s", c, step.level, got, step.lines, out.String())
			}
		}
	}
}
