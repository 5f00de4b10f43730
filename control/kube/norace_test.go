//go:build kube && !race

package kube_test

const raceEnabled = false
