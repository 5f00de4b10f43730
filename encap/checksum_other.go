//go:build !amd64

package encap

// sum adds b as little-endian words to acc, end-around carry included.
func sum(b []byte, acc uint64) uint64 { return sumPortable(b, acc) }
