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
	"github.com/overlayd/overlayd/dataplane/pace"
)

// eventPeriod is how often it is looked whether there is something to tell.
const eventPeriod = 5 * time.Second

// events are what the store of a network was told about this node, by reason.
type events struct {
	told    map[string]string
	notices pace.Notices    // of those that come and go
	due     map[string]bool // notices allow it, and nobody has been told yet
}

func newEvents() *events { return &events{told: map[string]string{}, due: map[string]bool{}} }

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
			report := status.Report(status.Process{}, true, []status.Network{n.Status()})
			if err := all[n].tell(ctx, teller, eventsIn(report.Warnings, s.fault)); err != nil && ctx.Err() == nil {
				n.log.DebugContext(ctx, "event not written", "err", err)
			}
		}
	}
}

// tell tells what is new in now, and what is over. What could not be told is told the next time.
func (e *events) tell(ctx context.Context, t control.EventTeller, now map[string]string) error {
	var errs []error
	for reason, text := range now {
		if _, known := e.told[reason]; known || !e.isDue(reason) {
			continue
		}
		if err := t.Tell(ctx, control.Event{Reason: reason, Text: text}); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(e.due, reason)
		e.told[reason] = text
	}
	for reason, text := range e.told {
		if _, still := now[reason]; still {
			continue
		}
		if err := t.Tell(ctx, control.Event{Reason: reason, Text: "resolved: " + text, Over: true}); err != nil {
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

// eventsIn returns what is worth an event, by reason. fault is why there is no session.
func eventsIn(warnings []status.Warning, fault error) map[string]string {
	now := map[string]string{}
	if bad := new(control.NetworkError); errors.As(fault, &bad) {
		now[control.EventConfigInvalid] = bad.Error()
	}
	for _, w := range warnings {
		reason := ""
		switch {
		case w.ID == "config_held", w.ID == "config_refused":
			reason = control.EventConfigInvalid
		case w.ID == "lease_lost":
			reason = control.EventLeaseLost
		case w.ID == "peers_"+status.ReasonPathMTU:
			reason = control.EventMTUMismatch
		case strings.HasPrefix(w.ID, "peers_"):
			reason = control.EventPeerUnreachable
		default:
			continue
		}
		if now[reason] == "" {
			now[reason] = w.Text + "; next: " + w.Fix
		}
	}
	return now
}
