package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Network is one overlay network that the daemon serves: its store, its claims, and who this
// node is in it. Sessions come and go on top of it, one at a time. But for Status its methods are
// called from one goroutine.
type Network struct {
	daemon     *Daemon
	cfg        *Config
	name       string // "" if the daemon serves one network
	log        *slog.Logger
	subnetFile string
	node       control.Node
	file       *nodefile.File // claim of subnetFile
	device     *claim.Device  // of the last session's device: kept while no other is wanted
	claimed    atomic.Bool    // a device was claimed, since the subnet file was

	store    control.Store        // nil while it is closed
	iface    underlay.Interface   // of the current session
	chosenBy underlay.Options     // what chose it
	unasked  bool                 // the store did not say which addresses it is to have
	stored   [2]netip.Addr        // which it has said last
	kept     *Session             // the last one, if its dataplane goes on; else nil
	inherits handover.Inheritance // what the next one can go on with, if not with kept
	left     nodefile.Left        // of the last session, even if that was another process's
	earlier  earlier              // what stays of sessions before that
	settle   time.Duration        // of the guard of the next session
	health   *underlay.Health     // of iface
	beside   *leftovers.Beside
	heard    map[netip.Prefix]bool // subnets of peers that answered probes in the last session
	opened   bool                  // an overlay was open once: from now on nothing ends serve
	refused  refusal
	lengths  control.Lengths // of the subnets of all configs that were in force
	held     held            // what the store has, while another config is in force, or none
	applied  control.Network // of the last session
	outdated bool            // the store had another config when the last session ended
	follows  follows         // of the configs so far
	late     bool            // the network came when the daemon served others already
	recalled bool            // the session that begins has the last one's config, as the store is silent
	retry    pace.Backoff    // after a session whose overlay failed
	noticing sync.Mutex      // of notices: keepFile, keepClaim and leaveFiles of a session use them at once
	notices  pace.Notices    // of these, and of what each session may meet again

	filing    sync.Mutex                       // of these two
	noFile    error                            // why the node file is not as it should be
	noClaim   error                            // why the device is not claimed
	fileFault atomic.Pointer[controller.Fault] // why a file of this network cannot be written now; nil: none

	withdrawn     atomic.Uint64                     // routes that hid the store
	configRepairs atomic.Uint64                     // see putConfigBack
	holdNotices   pace.Notices                      // of held; for whoever of the session and waitForConfig runs
	heldStatus    atomic.Pointer[status.HeldConfig] // held, for others; nil: it is zero
	snapshot      atomic.Pointer[snapshot]          // never nil
}

// refusal is a network config that no dataplane here can carry, and why.
type refusal struct {
	network control.Network
	err     error
	at      time.Time
}

// refusalHolds is how long a refusal keeps a dataplane from being tried again: the obstacle, such
// as a module that is not loaded, may have gone.
const refusalHolds = 30 * time.Second

// of returns why a config need not be tried now; nil if it has to be.
func (r refusal) of(c control.Network) error {
	if c != r.network || time.Since(r.at) > refusalHolds {
		return nil
	}
	return r.err
}

// newNetwork returns a network that the daemon is expected to serve from now on.
func (d *Daemon) newNetwork(name string) *Network {
	n := &Network{daemon: d, cfg: &d.cfg, name: name, log: d.cfg.Log, subnetFile: d.cfg.subnetFileOf(name),
		inherits: handover.Inheritance{Estate: &d.estate, Several: d.cfg.several()},
		retry:    pace.Backoff{Low: 100 * time.Millisecond, High: overlay.RetryPeriod}}
	if name != "" {
		n.log = d.cfg.Log.With("network", name)
	}
	n.health = underlay.NewHealth(n.log, d.cfg.Deaf)
	n.beside = leftovers.NewBeside(n.log, n.subnetFile)
	d.expects.add(n)
	return n
}

// sessionLog is the log of what a session says of its beginning and end. After a change of the network config, and for a network that came late, whoever writes to
// the store decides how often one begins: then it is bounded as the store's is.
func (n *Network) sessionLog() *slog.Logger {
	if n.outdated || n.late {
		return n.cfg.StoreLog.Of(n.log)
	}
	return n.log
}

func (n *Network) fix(err error) string { return n.cfg.fix(n.name, err) }

// attrs are the attributes of a log line about an error.
func (n *Network) attrs(err error) []any { return n.cfg.attrs(n.name, err) }

// claim makes the subnet file this process's, and learns the node's ID from the file beside it.
func (n *Network) claim() (err error) {
	n.node = control.Node{Name: n.cfg.Hostname}
	n.node.Process, n.node.Handed = n.daemon.estate.Identity()
	n.file, err = nodefile.Claim(n.subnetFile, n.daemon.estate.TakeNamed(nodefile.LockName(n.subnetFile))...)
	switch {
	case errors.As(err, new(*nodefile.RunningError)):
		return err
	case err != nil:
		n.file = nodefile.Unclaimed(n.subnetFile)
	}
	n.node.ID, n.left = n.file.ID, n.file.Left
	n.settleFile()
	return nil
}

// stopped is called at the end of the process, while the network still has the claim of its device.
func (n *Network) stopped() {
	if n.cfg.Rules.Remove && n.claimed.Load() {
		n.removeRules()
	}
}

// release gives up the claims, after the last session has ended.
func (n *Network) release() {
	n.closeStore()
	n.releaseDevice()
	n.claimed.Store(false) // the others wait for it again
	n.file.Release()
}

// serve runs one session after the other until ctx ends. Only the first may end it, and only if
// this machine lacks the interface or the dataplane: later it waits for whatever broke, such as an
// underlay link that somebody deleted. Any session ends it if another host lives that has the node file
// and the address of this one (control.ErrCloned): people must say which of the two is the node.
func (n *Network) serve(ctx context.Context) error {
	defer n.closeStore()
	defer func() {
		n.endKept()
		n.inherits.Leave(nil)
	}()
	var keeps sync.WaitGroup
	inner, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		keeps.Wait()
	}()
	keeps.Go(func() { n.keepFile(inner) })
	again := pace.Backoff{Low: 500 * time.Millisecond, High: 30 * time.Second}
	for {
		began := time.Now()
		err := n.openStore(ctx)
		if err == nil {
			err = n.runSession(ctx)
		}
		n.publishNoSession(err)
		switch {
		case ctx.Err() != nil:
			return nil
		case n.daemon.draining():
			return n.giveBack(ctx, err)
		case errors.Is(err, control.ErrCloned):
			return err
		case errors.Is(err, parts.ErrUnfit):
			continue // waitForConfig logs the reason
		case !n.opened && !changedInStore(err) && !parts.IsPortTaken(err):
			return err
		}
		if pause := n.pause(&again, time.Since(began), err); pause > 0 && !pace.Sleep(ctx, pause, n.daemon.drain) {
			if ctx.Err() != nil {
				return nil
			}
			return n.giveBack(ctx, err)
		}
	}
}

// changedInStore reports whether a session ended because config or underlay are not what they were.
func changedInStore(err error) bool {
	return errors.Is(err, errUnderlayChanged) || errors.Is(err, control.ErrNetworkChanged)
}

// pause returns how long to wait before the session after one that ended with err.
func (n *Network) pause(again *pace.Backoff, lasted time.Duration, err error) time.Duration {
	if errors.Is(err, errUnderlayChanged) {
		n.closeStore() // connections from an address that is gone would only time out
	}
	if changedInStore(err) {
		why := []any{"why", err}
		if fix := n.fix(err); fix != "" {
			why = append(why, "fix", fix)
		}
		n.sessionLog().Info("session ended: opening another", why...)
		if lasted > again.Low { // what changes to and fro is followed less and less often
			again.Reset()
			return 0
		}
		return again.Next()
	}
	if o := (overlayError{}); errors.As(err, &o) {
		return n.pauseOfOverlay(o.lasted, err)
	}
	if lasted > again.High {
		again.Reset()
	}
	pause := again.Next()
	n.log.Error("session ended: starting it again", append(n.attrs(err), "after", pause)...)
	return pause
}

// overlayError is a fault of the overlay on this host, and not of the store. It has a shorter pause (pauseOfOverlay).
type overlayError struct {
	error
	lasted time.Duration // since it was opened; 0: it was not
}

// Unwrap returns the fault itself.
func (e overlayError) Unwrap() error { return e.error }

// pauseOfOverlay returns how long to wait after the overlay failed. If the session lasted, as when somebody has
// deleted the device, the next one begins at once. If not, the pause is short: the obstacle may go at any time.
func (n *Network) pauseOfOverlay(lasted time.Duration, err error) time.Duration {
	if lasted > 0 {
		n.beside.Hint() // a flanneld deletes a TUN device that it finds in its place
	}
	if lasted > time.Second {
		n.retry.Reset()
		n.log.Error("session ended: starting it again", n.attrs(err)...)
		return 0
	}
	if due := n.news(pace.Notice{Key: "overlay", Text: err.Error()}); len(due) > 0 {
		n.log.Error("session ended: trying again until the overlay works", n.attrs(err)...)
	}
	return n.retry.Next()
}
