package control

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// FaultBytes is the limit of a text that says why something does not work: it may say what to do.
const FaultBytes = 1024

// Printable makes text from the store safe to log: control characters and invalid
// UTF-8 are escaped, and it is cut at limit bytes.
func Printable(s string, limit int) string {
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
