package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// configKey is a key of a network config and its place.
type configKey struct {
	path   string // in the file's own spelling, such as Backend.vni
	offset int64  // of its first byte
}

// positionError is an error at an offset of the file.
type positionError struct {
	offset int64
	err    error
}

// Error implements error.
func (e *positionError) Error() string { return e.err.Error() }

// configKeys lists the keys of the top level and of Backend, in the order of the file.
// Its error is a *positionError: the text is not JSON.
func configKeys(text []byte) (keys []configKey, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	var path []string // keys of the objects that are open; "" for a list
	var open []json.Delim
	wantKey := false
	for {
		before := d.InputOffset()
		t, err := d.Token()
		switch {
		case errors.Is(err, io.EOF) && len(open) == 0 && len(bytes.TrimSpace(text)) > 0:
			return keys, nil
		case err != nil:
			return keys, jsonError(text, d.InputOffset(), err)
		}
		if wantKey {
			if name, ok := t.(string); ok {
				path = append(path[:len(open)-1], name)
				if len(open) == 1 || len(open) == 2 && strings.EqualFold(path[0], "Backend") {
					keys = append(keys, configKey{strings.Join(path, "."), before + int64(bytes.IndexByte(text[before:], '"'))})
				}
				wantKey = false
				continue
			}
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			open = append(open, t.(json.Delim))
			if t == json.Delim('[') {
				path = append(path[:len(open)-1], "")
			}
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		wantKey = len(open) > 0 && open[len(open)-1] == '{'
	}
}

// jsonError returns an error with the place at which the text stops being JSON.
func jsonError(text []byte, offset int64, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		offset, err = int64(len(text)), errors.New("read JSON: it ends before it is complete")
	case errors.As(err, &syntax):
		offset, err = max(offset, syntax.Offset-1), fmt.Errorf("read JSON: %w", err)
	}
	return &positionError{offset, err}
}

// position returns line and column of an offset, both from 1, the column in bytes.
func position(text []byte, offset int64) (line, column int) {
	before := text[:min(max(offset, 0), int64(len(text)))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// knownKeys are those that control.ParseNetwork reads, and those of flannel's Windows backend.
func knownKeys() []string {
	return []string{"EnableIPv4", "EnableIPv6", "EnableNFTables", "Network", "SubnetLen", "SubnetMin", "SubnetMax",
		"IPv6Network", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax", "Backend",
		"Backend.Type", "Backend.VNI", "Backend.Port", "Backend.MTU", "Backend.GBP", "Backend.Learning", "Backend.DirectRouting",
		"Backend.Name", "Backend.MacPrefix"}
}

// unknownKeys returns the keys that have no effect, each with the key that was probably meant, and
// those that have none because the same key follows later.
func unknownKeys(keys []configKey) (found []positionError) {
	for i, k := range keys {
		same := func(name string) bool { return strings.EqualFold(name, k.path) }
		if !slices.ContainsFunc(knownKeys(), same) {
			text := fmt.Sprintf("%.80q is not a key of a network config", k.path)
			if near := nearestKey(k.path); near != "" {
				text += fmt.Sprintf(": do you mean %q?", near)
			}
			found = append(found, positionError{k.offset, errors.New(text)})
		} else if slices.ContainsFunc(keys[i+1:], func(later configKey) bool { return same(later.path) }) {
			found = append(found, positionError{k.offset, fmt.Errorf("%q is given again later, and that one counts", k.path)})
		}
	}
	return found
}

// Nearest returns that of names which differs least from name; empty if none is similar.
func Nearest(name string, names []string) (found string) {
	best := 1 + len(name)/3
	for _, n := range names {
		if d := distance(n, name); d < best || d == best && found == "" {
			best, found = d, n
		}
	}
	return found
}

// nearestKey returns the known key that differs least from a name; empty if none is similar.
func nearestKey(name string) (nearest string) {
	last := name[strings.LastIndexByte(name, '.')+1:]
	best := 1 + len(last)/3
	for _, k := range knownKeys() {
		d := distance(strings.ToLower(k), strings.ToLower(name))
		// A key of Backend at the top level, or the reverse, is off by its path only.
		if strings.EqualFold(k[strings.LastIndexByte(k, '.')+1:], last) {
			d = min(d, 1)
		}
		if d < best || d == best && nearest == "" {
			best, nearest = d, k
		}
	}
	return nearest
}

// distance returns how many characters to insert, delete and replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// offsetOf returns the place of the key that a message of control.ParseNetwork is about: the first
// of the file's keys that it names. Network and Backend come last: a message names them because
// another key does not fit the network, or is in Backend.
func offsetOf(keys []configKey, message string) int64 {
	best, at := 2*len(message)+1, int64(0)
	for _, k := range keys {
		name := k.path
		if strings.EqualFold(name, "Backend.Type") {
			name = "backend type"
		}
		found := regexp.MustCompile(`(?i)(^|[^\w.])` + regexp.QuoteMeta(name) + `\b`).FindStringIndex(message)
		if found == nil {
			continue
		}
		if lower := strings.ToLower(name); lower == "backend" || strings.HasSuffix(lower, "network") {
			found[0] += len(message)
		}
		if found[0] < best {
			best, at = found[0], k.offset
		}
	}
	return at
}
