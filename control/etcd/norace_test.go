//go:build !race

package etcd_test

const raced = false
