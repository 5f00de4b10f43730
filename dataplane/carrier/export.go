package carrier

import (
	"net/netip"
	"os"
	"slices"
)

// Export is one file that a process hands over to the next one, which goes on reading where it stopped:
// what the kernel has queued there meanwhile is not lost.
type Export struct {
	Name    string   `json:"name"` // what it is; the files of one name are in the order of the workers
	Flags   uint64   `json:"flags"`
	Version int      `json:"version"` // of the meaning of Name and Flags
	File    *os.File `json:"-"`       // a duplicate: the exporter's own stays open
}

// UplinkName is the name of the file of the uplink of a carrier for a local address.
func UplinkName(local netip.AddrPort) string { return "uplink " + local.String() }

// ExportVersion is the Version of what this package and dataplane/userspace export.
const ExportVersion = 1

// Exporter is a carrier or a host that can hand over what it reads from.
type Exporter interface {
	// Export returns duplicates of the files, which are the caller's. The exporter goes on.
	Export() ([]Export, error)
}

// NamesOf returns the names of exports, each once.
func NamesOf(exports []Export) (names []string) {
	for _, e := range exports {
		if !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	return names
}

// CloseExports closes the files of exports.
func CloseExports(exports []Export) {
	for _, e := range exports {
		e.File.Close()
	}
}
