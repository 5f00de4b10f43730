package userspace

import (
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// Export returns duplicates of all that d reads from, for Config.Inherited of another process; a port that
// it shares is not d's. d goes on until its Run has ended: then nothing is read until the other one does,
// and what comes meanwhile waits in the kernel. The duplicates are the caller's.
func (d *Dataplane) Export() ([]carrier.Export, error) {
	switch {
	case !isClosed(d.entered):
		return nil, errors.New("nothing is forwarded yet")
	case d.shared:
		return exportAll(d.host)
	}
	return exportAll(append([]any{d.host}, d.port.ends()...)...)
}

// Export is that of a Dataplane, for a Port that several share. See Still.
func (p *Port) Export() ([]carrier.Export, error) {
	if !p.isOpen() {
		return nil, errors.New("nothing is received yet")
	}
	return exportAll(p.ends()...)
}

func (p *Port) ends() (all []any) {
	for _, c := range p.carriers {
		all = append(all, c)
	}
	return all
}

// exportAll exports what the ends read from.
func exportAll(ends ...any) (all []carrier.Export, err error) {
	for _, end := range ends {
		e, ok := end.(carrier.Exporter)
		if !ok {
			err = fmt.Errorf("%T cannot hand over", end)
			break
		}
		exports, eerr := e.Export()
		if all, err = append(all, exports...), eerr; err != nil {
			break
		}
	}
	if err != nil {
		carrier.CloseExports(all)
		return nil, err
	}
	return all, nil
}

// Export implements carrier.Exporter.
func (h *tunHost) Export() (exports []carrier.Export, err error) {
	flags := inherit.Flags(h.offloads.OfFiles(), h.device.Mode())
	for _, q := range h.qs {
		e, err := carrier.ExportFile(q.source(), h.name, flags)
		if err != nil {
			carrier.CloseExports(exports)
			return nil, err
		}
		exports = append(exports, e)
	}
	return exports, nil
}
