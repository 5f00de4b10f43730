package etcd_test

import (
	"testing"

	"github.com/overlayd/overlayd/control/controltest"
)

func TestConform(t *testing.T) {
	t.Parallel()
	controltest.Conform(t, func(tb testing.TB) controltest.Harness { return newCluster(tb) })
}
