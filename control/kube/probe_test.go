//go:build kube

package kube_test

const asProbe = "OVERLAYD_TEST_AS_KUBE_PROBE"

func probe() int { return 0 }
