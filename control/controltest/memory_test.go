package controltest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	Conform(t, func(testing.TB) Harness { return NewMemory(time.Hour) })
}
