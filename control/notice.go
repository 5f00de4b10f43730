package control

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	noticeRepeat = 10 * time.Minute // an unchanged fault is said again after this
	noticeBurst  = 100              // lines at once; of the rest only the number is said
	noticeKept   = 1024             // remembered before old ones are forgotten
	noticeBytes  = 256              // of each text
)

// notice is one fault to log: what it concerns and what is wrong.
type notice struct{ key, text string }

// notices decides which of the present faults to log now. A fault that comes and
// goes is said once in noticeRepeat, so that nobody fills the log through the store.
type notices struct {
	said map[notice]time.Time
}

// due returns those of current that are new, changed or due again, and how many
// more there are beyond noticeBurst.
func (n *notices) due(now time.Time, current []notice) (say []notice, more int) {
	if n.said == nil {
		n.said = map[notice]time.Time{}
	}
	for _, c := range current {
		if at, ok := n.said[c]; ok && now.Sub(at) < noticeRepeat {
			continue
		}
		n.said[c] = now
		if len(say) == noticeBurst {
			more++
			continue
		}
		say = append(say, c)
	}
	if len(n.said) > noticeKept+len(current) {
		n.forget(now, current)
	}
	return say, more
}

// forget drops what is over: first what is old, and everything that is not current
// if that is not enough.
func (n *notices) forget(now time.Time, current []notice) {
	for k, at := range n.said {
		if now.Sub(at) >= noticeRepeat {
			delete(n.said, k)
		}
	}
	if len(n.said) <= noticeKept+len(current) {
		return
	}
	kept := make(map[notice]time.Time, len(current))
	for _, c := range current {
		if at, ok := n.said[c]; ok {
			kept[c] = at
		}
	}
	n.said = kept
}

// printable makes text from the store safe to log: control characters and invalid
// UTF-8 are escaped, and it is cut at noticeBytes.
func printable(s string) string { return printableTo(s, noticeBytes) }

// printableTo is printable with another limit, in bytes.
func printableTo(s string, limit int) string {
	const cut = "…"
	b := make([]byte, 0, min(len(s), limit))
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		piece := s[:size]
		s = s[size:]
		if (r == utf8.RuneError && size == 1) || !unicode.IsPrint(r) {
			piece = strconv.QuoteToASCII(piece)
			piece = piece[1 : len(piece)-1]
		}
		if len(b)+len(piece) > limit-len(cut) {
			return string(append(b, cut...))
		}
		b = append(b, piece...)
	}
	return string(b)
}
