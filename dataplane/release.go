package dataplane

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Release is the release of a kernel, such as "6.1.0-13-amd64".
type Release struct {
	Text         string
	major, minor int
}

// KernelRelease returns the release of the running kernel.
func KernelRelease() (Release, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Release{}, fmt.Errorf("read the release of the kernel: %w", err)
	}
	return parseRelease(unix.ByteSliceToString(u.Release[:]))
}

func parseRelease(text string) (Release, error) {
	r := Release{Text: text}
	if _, err := fmt.Sscanf(text, "%d.%d", &r.major, &r.minor); err != nil {
		return Release{}, fmt.Errorf("release %q of the kernel: want two numbers with a dot between them: %w", text, err)
	}
	return r, nil
}

// Before reports whether the release is before major.minor.
func (r Release) Before(major, minor int) bool {
	return r.major < major || r.major == major && r.minor < minor
}
