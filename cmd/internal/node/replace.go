package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/pace"
)

var (
	// errReplaced says that another daemon goes on in the place of this one.
	errReplaced = errors.New("another overlayd goes on")
	// errNotReplaced says that another daemon was to go on, and did not get all that it needs.
	errNotReplaced = errors.New("hand over to another overlayd")
)

const (
	// storePatience bounds how long the store may take to answer before the running daemon is asked.
	storePatience = 5 * time.Second
	// roomForReplacing bounds how long the running daemon takes to end once it has handed over.
	roomForReplacing = 10 * time.Second
	// roomForEnding bounds how long a daemon takes that has been told to stop.
	roomForEnding = time.Second
	// roomForClosing bounds how long the kernel takes to close the files of one that was killed: for TUN queues it waits for others who
	// change the network configuration of this machine.
	roomForClosing = 10 * time.Second
	// givePatience bounds how long a daemon that is asked waits for a Sync that runs. Whoever asks waits for ten
	// seconds in all (package handover).
	givePatience = 2 * time.Second
)

// claimOrReplace claims the subnet file, in the place of the daemon that has it if that is asked for. One that was killed a moment ago has it
// until the kernel has closed all its files.
func (n *Network) claimOrReplace(ctx context.Context) error {
	err := n.claim()
	switch {
	case !errors.As(err, new(*nodefile.RunningError)):
		return err
	case n.cfg.Replace:
		return n.replace(ctx, err)
	case n.claimLeft(ctx):
		return nil
	}
	return err
}

// replace claims the subnet file in the place of the daemon that has it, and takes what that one hands
// over. If this daemon could not serve the network, the running one is not asked, and goes on.
func (n *Network) replace(ctx context.Context, running error) (err error) {
	defer func() {
		if err != nil {
			n.daemon.estate.Drop("the place is not free", inherit.IsTraffic)
			n.closeStore()
		}
	}()
	if err = n.takePlace(ctx, running); err == nil || !n.claimLeft(ctx) {
		return err
	}
	n.log.Info("the overlayd that was to be replaced has ended by itself: starting without what it had", "why", err)
	return nil
}

// claimLeft claims the subnet file if the daemon that had it has ended, or is about to.
func (n *Network) claimLeft(ctx context.Context) bool {
	for began := time.Now(); ; {
		err, other, room := n.claim(), new(nodefile.RunningError), roomForEnding
		if err == nil {
			return true
		}
		if errors.As(err, &other) && other.Ends && !n.cfg.Replace {
			room = roomForClosing
		}
		if time.Since(began) > room || !pace.Sleep(ctx, 10*time.Millisecond, nil) {
			return false
		}
	}
}

// takePlace is replace without the running daemon's own end.
func (n *Network) takePlace(ctx context.Context, running error) error {
	config, err := n.rehearse(ctx)
	if err != nil {
		return fmt.Errorf("%w, and goes on: %w", running, err)
	}
	l, err := handover.Ask(handover.Path(n.subnetFile), handover.Question{All: true, Networks: n.cfg.Networks})
	if errors.Is(err, os.ErrNotExist) {
		l, err = n.takeFromOlder(config, running)
	}
	if err != nil {
		return fmt.Errorf("%w, and does not make room: %w", running, err)
	}
	n.log.Info("taking the place of the running overlayd", "files", len(l.Exports))
	n.daemon.estate.Succeed(l)
	n.daemon.serveAdmin(ctx, true)
	ctx, cancel := context.WithTimeout(ctx, roomForReplacing)
	defer cancel()
	l.Wait(ctx)
	for { // the first daemons that could be asked do not say when they have ended
		err := n.claim()
		if !errors.As(err, new(*nodefile.RunningError)) || !pace.Sleep(ctx, time.Millisecond, nil) {
			return err
		}
	}
}

// replaceOthers takes the place of whoever serves any of the networks that this daemon is to serve.
func (d *Daemon) replaceOthers(ctx context.Context) error {
	for _, file := range nodefile.SubnetFilesIn(d.cfg.SubnetDir) {
		name := strings.TrimSuffix(filepath.Base(file), ".env")
		if !d.cfg.concerns(name) {
			continue
		}
		n := d.newNetwork(name)
		err := n.claimOrReplace(ctx)
		n.closeStore()
		n.release()
		d.expects.remove(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// takeFromOlder takes the place of a daemon of a version that cannot be asked, and forwards itself.
func (n *Network) takeFromOlder(c control.Network, running error) (*handover.Legacy, error) {
	other := new(nodefile.RunningError)
	if !errors.As(running, &other) || other.PID == 0 {
		return nil, errors.New("it is of a version that cannot be asked")
	}
	still := func() bool {
		pid, held, err := nodefile.Holder(n.subnetFile)
		return err == nil && held && pid == other.PID
	}
	l, err := handover.TakeFrom(other.PID, still, func(fd int) (string, uint64, bool) {
		return inherit.Identify(fd, c.Backend.VNI, c.Backend.Port, n.cfg.Offloads.OfFiles())
	})
	if err != nil {
		return nil, fmt.Errorf("it is of a version that cannot be asked, and its files cannot be taken: %w", err)
	}
	return l, nil
}

// rehearse returns what would keep this daemon from serving the network, as far as that shows beside the running
// one. The store has to answer; its connection is there when it is needed.
func (n *Network) rehearse(ctx context.Context) (config control.Network, err error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	if _, err := n.findUnderlay(ctx); err != nil {
		return config, err
	}
	if n.cfg.StartEtcd != nil {
		return config, nil // it ends with the running daemon
	}
	if err := n.openStore(ctx); err != nil {
		return config, err
	}
	config, err = n.store.Network(ctx)
	switch {
	case errors.Is(err, control.ErrNoNetwork):
		return config, nil // it is waited for
	case err != nil:
		return config, fmt.Errorf("ask the store: %w", err)
	}
	if err := n.chooseUnderlay(ctx, config); err != nil {
		return config, err
	}
	if err := n.host().Carries(config); err != nil {
		return config, err
	}
	if err := n.holdAtStart(ctx, config); err != nil {
		return config, err
	}
	if n.cfg.Mode == fit.Kernel && config.Backend.IsVXLAN() {
		return config, kernel.Available()
	}
	return config, nil
}
