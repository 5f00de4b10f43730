package stream

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/capture"
)

// Version is the version of a stream. Frames and fields may be added; another version means that one was removed or has
// another meaning.
const Version = 1

// Hello is what a stream begins with.
type Hello struct {
	V        int      `json:"v"`                 // Version
	Host     string   `json:"host"`              // name of the node
	Version  string   `json:"version,omitempty"` // of overlayd
	Filter   string   `json:"filter,omitempty"`  // the query
	Verdicts []string `json:"verdicts"`          // their names, by number
}

// Append appends the frame of a hello.
func (h Hello) Append(b []byte) []byte {
	text, _ := json.Marshal(h) // it has nothing that JSON has not
	return capture.AppendText(b, capture.Hello, string(text))
}

// maxVerdicts bounds how many there can be: their numbers have a byte.
const maxVerdicts = 1 << 8

func parseHello(text string) (h Hello, err error) {
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return h, fmt.Errorf("%w: hello: %w", capture.ErrStream, err)
	}
	if h.V != Version {
		return h, fmt.Errorf(`hello: "v" is %d, and this program reads version %d: use the overlayd-capture of the overlayd that runs`, h.V, Version)
	}
	if n := len(h.Verdicts); n == 0 || n > maxVerdicts {
		return h, fmt.Errorf(`%w: hello: "verdicts" has %d entries, not 1 to %d`, capture.ErrStream, n, maxVerdicts)
	}
	return h, nil
}

// Names are the names of nodes by the address of their VTEP.
type Names map[netip.Addr]string

// maxNames bounds how many names one end of a stream keeps.
const maxNames = 1 << 17

// Update appends what is new or different in now to b, as frames, and notes it in n.
func (n Names) Update(b []byte, now Names) []byte {
	var text strings.Builder
	for addr, name := range now {
		if n[addr] == name || len(n) >= maxNames {
			continue
		}
		n[addr] = name
		if text.Len()+len(name)+64 > capture.MaxText {
			b = capture.AppendText(b, capture.Names, text.String())
			text.Reset()
		}
		fmt.Fprintf(&text, "%s %s\n", addr, name)
	}
	if text.Len() > 0 {
		b = capture.AppendText(b, capture.Names, text.String())
	}
	return b
}

// parse notes the names of a frame, safe to print.
func (n Names) parse(text string) error {
	for line := range strings.Lines(text) {
		at, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		addr, err := netip.ParseAddr(at)
		if err != nil || !ok {
			return fmt.Errorf("%w: names: %.80q is not an address and a name", capture.ErrStream, line)
		}
		if len(n) < maxNames {
			n[addr] = control.Printable(name, maxName)
		}
	}
	return nil
}
