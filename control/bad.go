package control

// maxBad bounds the unreadable entries that are known by what is wrong with them: who may write to the store can
// make as many as they like.
const maxBad = 1000

// badEntries are the entries that are unreadable now. Those beyond the first 1000 are only counted: they are told once the
// store is listed again with fewer.
type badEntries struct {
	told map[string]BadLease // by key
	rest map[string]struct{}
}

func newBadEntries() badEntries {
	return badEntries{map[string]BadLease{}, map[string]struct{}{}}
}

func (b *badEntries) put(e BadLease) {
	if _, known := b.told[e.Key]; known || len(b.told) < maxBad {
		b.told[e.Key] = e
		delete(b.rest, e.Key)
		return
	}
	b.rest[e.Key] = struct{}{}
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
