package device

import (
	"errors"
	"fmt"
)

// ErrGone says that the device is not in this network namespace any more: somebody deleted it, or moved it away.
var ErrGone = errors.New("the device has gone")

// NameTakenError says that the name of the TUN device belongs to a device that overlayd does not
// replace.
type NameTakenError struct {
	Name string
	Type string // of the device, such as "bridge"
}

// Error implements error.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("make TUN device %s: a device of type %s has this name", e.Name, e.Type)
}
