package device

import "fmt"

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
