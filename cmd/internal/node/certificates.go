package node

import (
	"errors"

	"github.com/overlayd/overlayd/control"
)

// ReadCertificates has the stores of all networks read their certificates again. It may be called at any time: a store
// that is not open yet reads them when it connects.
func (d *Daemon) ReadCertificates() (state control.CertificateState, err error) {
	for _, n := range d.expects.all() {
		r, ok := n.snapshot.Load().store.(control.CertificateReader)
		if !ok {
			continue
		}
		one, failed := r.ReadCertificates()
		state, err = max(state, one), errors.Join(err, failed)
	}
	return state, err
}
