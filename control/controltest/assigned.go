package controltest

import "testing"

// ConformAssigned is Conform for a Store that gives out no subnets: a node has those that
// are assigned to it, here Node.Previous or else what the harness assigns, and nobody else can
// have them. It leaves out the choice of a subnet, and the question whose an entry is. If the entry of a
// node is deleted, only its text is gone, and not the node's right to its subnets.
func ConformAssigned(t *testing.T, open func(tb testing.TB) Harness) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"NetworkMissing", networkMissing},
		{"AcquireFirst", acquireFirst},
		{"AcquireWithoutNetwork", acquireWithoutNetwork},
		{"AcquireResumesPrevious", acquireResumesPrevious},
		{"RenewExtends", renewExtends},
		{"RenewWithAnotherMAC", renewWithAnotherMAC},
		{"RenewAfterDeletion", renewAfterDeletion},
		{"RenewAfterJunk", renewAfterJunk},
		{"ReleaseAndAgain", releaseAndAgain},
		{"WatchFirstIsReset", watchFirstIsReset},
		{"WatchChanges", watchChanges},
		{"WatchOwnLease", watchOwnLease},
		{"WatchManyAtOnce", watchManyAtOnce},
		{"WatchSlowReceiver", watchSlowReceiver},
		{"WatchCancel", watchCancel},
		{"WatchAcrossGap", watchAcrossGap},
		{"WatchAcrossCompaction", watchAcrossCompaction},
		{"CallsObeyContext", callsObeyContext},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}
