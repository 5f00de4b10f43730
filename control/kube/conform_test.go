//go:build kube

package kube_test

import (
	"testing"

	"github.com/overlayd/overlayd/control/controltest"
)

func TestConform(t *testing.T) {
	controltest.ConformAssigned(t, func(tb testing.TB) controltest.Harness { return newHarness(tb) })
}
