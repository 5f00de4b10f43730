package control

import (
	"cmp"
	"slices"
	"strings"
)

// maxBad bounds the unreadable entries that are known by what is wrong with them: whoever may write to the store can
// make as many as they like.
const maxBad = 1000

// MaxUnreadable bounds the unreadable entries that are counted. Beyond them nothing is remembered of an entry, unless a lease was
// known under its key.
const MaxUnreadable = 50_000

// badEntries are the entries that are unreadable now. Those beyond the first 1000 are only counted: they are told once the
// store is listed again with fewer.
type badEntries struct {
	told map[string]BadLease // by key
	rest map[string]struct{}
}

func newBadEntries() badEntries {
	return badEntries{map[string]BadLease{}, map[string]struct{}{}}
}

// put notes an entry; known tells that there was a lease under its key.
func (b *badEntries) put(e BadLease, known bool) {
	if _, told := b.told[e.Key]; told || len(b.told) < maxBad {
		b.told[e.Key] = e
		delete(b.rest, e.Key)
		return
	}
	if known || b.len() < MaxUnreadable {
		b.rest[strings.Clone(e.Key)] = struct{}{} // and not the message that it is a part of
	}
}

func (b *badEntries) remove(key string) {
	delete(b.told, key)
	delete(b.rest, key)
}

func (b *badEntries) has(key string) bool {
	_, told := b.told[key]
	_, other := b.rest[key]
	return told || other
}

func (b *badEntries) len() int { return len(b.told) + len(b.rest) }

// maxRejected bounds the leases of which it is known why they are refused: whoever writes them can make as many as they
// like. Of those that are refused at one time they are the oldest ones; the others are counted.
const maxRejected = 2000

// oldestRejected returns as many of them as are known.
func oldestRejected(all []Rejection) []Rejection {
	if len(all) <= maxRejected {
		return all
	}
	slices.SortFunc(all, func(x, y Rejection) int {
		if first := x.isContest(); first != y.isContest() {
			return map[bool]int{true: -1, false: 1}[first]
		}
		return cmp.Or(cmp.Compare(x.rec.CreateRevision, y.rec.CreateRevision), cmp.Compare(x.Key, y.Key))
	})
	clear(all[maxRejected:])
	return all[:maxRejected]
}
