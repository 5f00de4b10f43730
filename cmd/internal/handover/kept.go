package handover

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strconv"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// keptFile is an export as the service manager has it, which knows nothing of it but a name: of at most 255 bytes,
// without colons and control characters.
type keptFile struct {
	carrier.Export
	index int    // among those of its name
	id    string // what the service manager that handed it over calls it: other versions may write the same in another way
}

// name returns what the service manager calls the file.
func (f keptFile) name() string {
	return url.Values{
		"file": {f.Name}, "index": {strconv.Itoa(f.index)},
		"flags": {strconv.FormatUint(f.Flags, 16)}, "version": {strconv.Itoa(f.Version)},
	}.Encode()
}

func (f keptFile) compare(g keptFile) int {
	return cmp.Or(cmp.Compare(f.Name, g.Name), cmp.Compare(f.index, g.index))
}

// keptFiles numbers the files of each name.
func keptFiles(exports []carrier.Export) (all []keptFile) {
	next := map[string]int{}
	for _, e := range exports {
		all = append(all, keptFile{Export: e, index: next[e.Name]})
		next[e.Name]++
	}
	return all
}

// maxIndex bounds the number of a file: no name has as many.
const maxIndex = 1 << 10

// parseKept reads the name of a file, and returns a duplicate of it.
func parseKept(f *os.File) (keptFile, error) {
	values, err := url.ParseQuery(f.Name())
	if err != nil {
		return keptFile{}, err
	}
	name := values.Get("file")
	index, err := strconv.ParseUint(values.Get("index"), 10, 32)
	if err != nil || index > maxIndex || name == "" {
		return keptFile{}, fmt.Errorf("its name says neither a file nor which")
	}
	flags, err := strconv.ParseUint(values.Get("flags"), 16, 64)
	if err != nil {
		return keptFile{}, fmt.Errorf("flags: %w", err)
	}
	version, err := strconv.Atoi(values.Get("version"))
	if err != nil {
		return keptFile{}, fmt.Errorf("version: %w", err)
	}
	e, err := carrier.ExportFile(f, name, flags)
	e.Version = version
	return keptFile{Export: e, index: int(index), id: f.Name()}, err
}
