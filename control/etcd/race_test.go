//go:build race

package etcd_test

// raced says that the race detector makes everything ten times slower.
const raced = true
