//go:build !cgo

package rights

const withCgo = false
