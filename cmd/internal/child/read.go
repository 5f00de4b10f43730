package child

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// maxLine bounds a line of the child, in bytes. What is longer is cut off.
const maxLine = 16 << 10

// maxShown bounds what is shown of a line that is not a record, in bytes.
const maxShown = 200

// lines calls each with every line of r until that ends.
func lines(r io.Reader, each func(line []byte)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, more, err := b.ReadLine()
		if err != nil {
			return
		}
		each(line)
		for more && err == nil {
			_, more, err = b.ReadLine()
		}
	}
}

// readOut takes the child's events and log. It returns why the child is about to end, nil if it does not tell.
func (p *Process) readOut(r io.Reader, pid int) (why *Error) {
	lines(r, func(line []byte) {
		if e, ok := parseEvent(line); ok {
			switch {
			case e.Event == eventReady:
				p.ready(pid)
			case e.Event == eventRefused:
				p.refused(e.Count)
			case e.Event == eventClosed:
				p.closed(&Error{e.Reason, e.Err})
			case e.Event == eventOpened:
				p.opened()
			case why == nil:
				why = &Error{e.Reason, e.Err}
			}
			return
		}
		r, ok := parseRecord(line)
		if !ok {
			r = record{slog.LevelWarn, p.cfg.Name + " printed", []any{"line", strings.ToValidUTF8(string(line[:min(len(line), maxShown)]), "?")}}
		}
		p.relay(r)
	})
	return why
}

// relay logs a record of the child. One text is logged once in a while, unless it is for debugging.
func (p *Process) relay(r record) {
	if r.level > slog.LevelDebug {
		if due, _ := p.records.Due(time.Now(), pace.Notice{Text: r.text}); len(due) == 0 {
			return
		}
	}
	p.cfg.Log.Log(context.Background(), r.level, r.text, r.attrs...)
}

// readCrash returns the line in which Go says why it ends a process, or else the first line.
func readCrash(r io.Reader) (text string) {
	found := false
	lines(r, func(line []byte) {
		s := string(line)
		isCrash := strings.HasPrefix(s, "panic: ") || strings.HasPrefix(s, "fatal error: ") || strings.HasPrefix(s, "unexpected fault address")
		if text == "" || isCrash && !found {
			text, found = s, isCrash
		}
	})
	return text
}

// Error is why a child has ended.
type Error struct {
	Reason string // for whoever knows the part; "": not known
	Text   string
}

// The reasons of a child that Go has ended, and of one that is not ready.
const (
	ReasonCrash  = "crash"
	ReasonLimits = "limits" // it got no memory or no thread
	ReasonLate   = "late"   // it has not ended
)

// Error implements error.
func (e *Error) Error() string { return e.Text }

// stable is what stays the same while a reason lasts. With a reason the text may have names that change.
func (e *Error) stable() string {
	if e.Reason != "" {
		return ""
	}
	return e.Text
}

func asError(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	return &Error{Text: err.Error()}
}

// crashError makes an Error of what Go, or the program at its end, has printed.
func crashError(text string) *Error {
	if _, ours := strings.CutPrefix(text, "overlayd: "); ours {
		return &Error{Text: text}
	}
	if said, fatal := strings.CutPrefix(text, "fatal error: "); fatal && (strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate") || strings.HasPrefix(said, "newosproc")) {
		return &Error{ReasonLimits, text}
	}
	return &Error{ReasonCrash, text}
}
