package guard

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// Cleanup removes the tables of these VNIs, or of all if none is given, from the network namespace of the calling thread.
// It returns what it removed, in words. A second call finds nothing.
func Cleanup(vnis ...uint32) (removed []string, err error) {
	tables, err := Tables()
	if err != nil {
		return nil, fmt.Errorf("clean up guard: %w", err)
	}
	for _, vni := range tables {
		if len(vnis) > 0 && !slices.Contains(vnis, vni) {
			continue
		}
		name := dataplane.GuardTable(vni)
		switch err := nft.Commit([]nft.Step{nft.DeleteTable(nft.Inet, name)}); {
		case errors.Is(err, unix.ENOENT): // somebody else has removed it
		case err != nil:
			return removed, fmt.Errorf("clean up guard: %w", err)
		default:
			removed = append(removed, "table inet "+name)
		}
	}
	return removed, nil
}

// Tables returns the VNIs that have a guard in the network namespace of the calling thread.
func Tables() (vnis []uint32, err error) {
	err = nft.Read(nft.Inet, func(r nft.Reader) error {
		vnis = nil
		names, err := r.Tables()
		for _, name := range names {
			if vni, ok := dataplane.GuardedVNI(name); ok {
				vnis = append(vnis, vni)
			}
		}
		return err
	})
	for _, absent := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT} {
		if errors.Is(err, absent) {
			return nil, nil // a kernel without nftables
		}
	}
	return vnis, err
}
