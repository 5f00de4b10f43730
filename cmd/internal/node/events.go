package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// eventPeriod is how often it is looked whether there is something to tell.
const eventPeriod = 5 * time.Second

// trouble is what is wrong.
type trouble struct {
	text string // for people, and still right when it is over
	now  string // the same as long as it lasts, with what to do
}

// events are what the store of a network was told about this node, by reason.
type events struct {
	told    map[string]trouble
	notices pace.Notices    // of those that come and go
	due     map[string]bool // notices allow it, and nobody has been told yet
}

func newEvents() *events { return &events{told: map[string]trouble{}, due: map[string]bool{}} }

// tellEvents tells stores that show events to people what is wrong with this node, and when it is over, until ctx ends.
func (d *Daemon) tellEvents(ctx context.Context) {
	all := map[*Network]*events{}
	for pace.Sleep(ctx, eventPeriod, nil) {
		networks := d.expects.all()
		maps.DeleteFunc(all, func(n *Network, _ *events) bool { return !slices.Contains(networks, n) })
		for _, n := range networks {
			s := n.snapshot.Load()
			teller, ok := s.store.(control.EventTeller)
			if !ok {
				continue
			}
			if all[n] == nil {
				all[n] = newEvents()
			}
			st := n.Status()
			report := status.Report(status.Process{}, true, []status.Network{st})
			if err := all[n].tell(ctx, teller, eventsIn(&st, report.Warnings, s.fault)); err != nil && ctx.Err() == nil {
				n.log.DebugContext(ctx, "event not written", "err", err)
			}
		}
	}
}

// tell tells what is new in now, and what is over. What could not be told is told the next time.
func (e *events) tell(ctx context.Context, t control.EventTeller, now map[string]trouble) error {
	var errs []error
	for reason, what := range now {
		if _, known := e.told[reason]; known || !e.isDue(reason) {
			continue
		}
		if err := t.Tell(ctx, control.Event{Reason: reason, Text: what.now}); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(e.due, reason)
		e.told[reason] = what
	}
	for reason, what := range e.told {
		if _, still := now[reason]; still {
			continue
		}
		if err := t.Tell(ctx, control.Event{Reason: reason, Text: "resolved: " + what.text, Over: true}); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(e.told, reason)
	}
	return errors.Join(errs...)
}

func (e *events) isDue(reason string) bool {
	if due, _ := e.notices.Due(time.Now(), pace.Notice{Key: reason}); len(due) > 0 {
		e.due[reason] = true
	}
	return e.due[reason]
}

// eventsIn returns what is worth an event, by reason. fault is why there is no session. A fault of few peers is theirs: each of thousands
// of nodes would tell of one that starts again. Status, log and metrics have it.
func eventsIn(n *status.Network, warnings []status.Warning, fault error) map[string]trouble {
	now := map[string]trouble{}
	if bad := new(control.NetworkError); errors.As(fault, &bad) {
		now[control.EventConfigInvalid] = trouble{bad.Error(), bad.Error()}
	}
	unreachable, narrow := faultsOfPeers(n)
	for _, w := range warnings {
		reason, text := "", w.Text
		switch {
		case w.ID == "config_held" && n.ConfigHeld != nil:
			reason, text = control.EventConfigInvalid, n.ConfigHeld.Why // and not when it is to be applied
		case w.ID == "config_refused":
			reason = control.EventConfigInvalid
		case w.ID == "lease_lost":
			reason = control.EventLeaseLost
		case w.ID == "peers_"+status.ReasonPathMTU && narrow:
			reason = control.EventMTUMismatch
		case strings.HasPrefix(w.ID, "peers_") && w.ID != "peers_"+status.ReasonPathMTU && unreachable:
			reason = control.EventPeerUnreachable
		default:
			continue
		}
		if _, known := now[reason]; !known {
			now[reason] = trouble{text, w.Text + "; next: " + w.Fix}
		}
	}
	return now
}

// faultsOfPeers reports whether at least half of the peers cannot be reached, or the path to them is too narrow: the fault may be this node's.
func faultsOfPeers(n *status.Network) (unreachable, narrow bool) {
	all, faults, narrows := 0, 0, 0
	for _, p := range n.AllPeers() {
		if p.State == controller.PeerRefused || p.State == controller.PeerKept { // those are still reached
			continue
		}
		all++
		if p.Works() {
			continue
		}
		if reason, _, _ := p.Why(); reason == status.ReasonPathMTU {
			narrows++
		} else {
			faults++
		}
	}
	return faults > 0 && 2*faults >= all, narrows > 0 && 2*narrows >= all
}
