package tun

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenErrorTellsWhy(t *testing.T) {
	for err, why := range map[error]error{
		unix.EPERM:  ErrNoTUN,
		unix.ENOENT: ErrNoTUN,
		unix.ENODEV: ErrNoModule,
		unix.ENXIO:  ErrNoModule,
	} {
		if got := openError(err); !errors.Is(got, err) || !errors.Is(got, why) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
