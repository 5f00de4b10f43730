package child

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
)

// event is what the child tells besides its log.
type event struct {
	Event  string `json:"event"`            // one of those below
	Reason string `json:"reason,omitempty"` // of a failure, or of a closed port: see Error
	Err    string `json:"err,omitempty"`
	Count  uint64 `json:"count,omitempty"` // of eventRefused: since the child began
}

// The values of event.Event.
const (
	eventReady   = "ready"
	eventFailed  = "failed"
	eventRefused = "refused"
	eventClosed  = "closed"
	eventOpened  = "opened"
)

// parseEvent reads a line that begins as an event does.
func parseEvent(line []byte) (e event, ok bool) {
	if !bytes.HasPrefix(line, []byte(`{"event":`)) {
		return e, false
	}
	err := json.Unmarshal(line, &e)
	return e, err == nil && slices.Contains([]string{eventReady, eventFailed, eventRefused, eventClosed, eventOpened}, e.Event)
}

// record is a line of the child's log.
type record struct {
	level slog.Level
	text  string
	attrs []any // in the order of the line, without the time
}

// parseRecord reads a line that slog's JSON handler has written.
func parseRecord(line []byte) (r record, ok bool) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return r, false
	}
	for d.More() {
		t, err := d.Token()
		key, isKey := t.(string)
		var value any
		if err != nil || !isKey || d.Decode(&value) != nil {
			return r, false
		}
		text, _ := value.(string)
		switch key {
		case slog.TimeKey:
		case slog.LevelKey:
			if r.level.UnmarshalText([]byte(text)) != nil {
				return r, false
			}
		case slog.MessageKey:
			r.text = text
		default:
			r.attrs = append(r.attrs, slog.Any(key, value))
		}
	}
	return r, r.text != ""
}
