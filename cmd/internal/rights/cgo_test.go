//go:build cgo

package rights

// withCgo: the process may have threads that Go does not know.
const withCgo = true
