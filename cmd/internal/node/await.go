package node

import (
	"context"
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// waitForConfig writes the first config if it was given one, and asks until the store has a usable
// one and the underlay for it is chosen. Nothing that the store contains ends the daemon, and one
// state of it is logged once a minute at most.
func (n *Network) waitForConfig(ctx context.Context) (control.Network, error) {
	const period = time.Second
	notices, log := pace.Notices{Repeat: time.Minute}, n.sessionLog()
	for {
		config, err := n.usableConfig(ctx)
		if err == nil || errors.Is(err, errNoUnderlay) {
			return config, err
		}
		if ctx.Err() == nil {
			n.publishNoSession(err)
			n.health.Look()
			if due, _ := notices.Due(time.Now(), pace.Notice{Text: control.Kind(err)}); len(due) > 0 {
				if errors.As(err, new(carryError)) {
					log.Error("not ready: this host cannot carry the network config", n.attrs(err)...)
				} else {
					log.Error("not ready: waiting for the network config", n.attrs(err)...)
				}
			}
		}
		if !pace.Sleep(ctx, period, n.daemon.drain) {
			if ctx.Err() != nil {
				return control.Network{}, ctx.Err()
			}
			return control.Network{}, errors.New("asked to drain while waiting for the network config")
		}
	}
}

// usableConfig returns the config once this host can carry it and it is not held, and chooses the underlay for it. If the store does not answer, that is
// the one of the last session.
func (n *Network) usableConfig(ctx context.Context) (control.Network, error) {
	config, err := n.loadConfig(ctx)
	if n.recalled = false; errors.As(err, new(silentError)) && ctx.Err() == nil {
		config, err = n.recall(ctx, err)
	}
	if err != nil {
		return config, err
	}
	if err := n.chooseUnderlay(ctx, config); err != nil {
		return config, err
	}
	if err := n.carries(ctx, n.host(), config); err != nil {
		n.noteHeld(config, err.Error(), 0)
		return config, carryError{err}
	}
	if n.recalled {
		return config, nil
	}
	return config, n.holdAtStart(ctx, config)
}

// carryError says why this host cannot carry a config that the store has.
type carryError struct{ error }

// Unwrap returns the reason itself.
func (e carryError) Unwrap() error { return e.error }

// loadConfig reads the config. If the store has no config, loadConfig writes the one that the user gave, if the user gave one and
// the store takes it. A config that was refused a moment ago is refused again. silentError: the store does not answer.
func (n *Network) loadConfig(ctx context.Context) (control.Network, error) {
	config, err := n.askConfig(ctx)
	if w, ok := n.store.(control.ConfigWriter); ok && n.cfg.FirstConfig != nil && errors.Is(err, control.ErrNoNetwork) {
		created, failed := w.Init(ctx, n.cfg.FirstConfig)
		if failed != nil {
			return control.Network{}, failed
		}
		if created {
			n.log.Info("network config written", "value", string(n.cfg.FirstConfig))
		}
		config, err = n.store.Network(ctx)
	}
	switch {
	case err == nil:
		if refused := n.refused.of(config); refused != nil {
			n.noteHeld(config, refused.Error(), 0)
			err = carryError{refused}
		}
	case isUnusable(err):
		n.noteUnusable(err)
	default:
		n.unhideStore(ctx)
		err = silentError{err}
	}
	return config, err
}

// isUnusable reports whether an error says that the store has no network config that can be used. Others say that it does not answer.
func isUnusable(err error) bool {
	return errors.Is(err, control.ErrNoNetwork) || errors.As(err, new(*control.NetworkError))
}

// unhideStore withdraws the routes of an overlay that lead to the store, which does not answer. A session that runs does so by itself:
// it needs the store of its underlay (package fit).
func (n *Network) unhideStore(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	withdrawn, err := fit.Unhide(ctx, n.reachesStore())
	if n.withdrawn.Add(uint64(len(withdrawn))); len(withdrawn) > 0 && n.kept != nil { // it would make them again
		n.endKept(n.filesOf(n.kept.config, n.kept.iface)...)
	}
	var news []pace.Notice
	for _, route := range withdrawn {
		news = append(news, pace.Notice{Key: "hides the store", Text: route})
	}
	due := n.news(news...)
	for _, route := range due {
		n.log.WarnContext(ctx, "route withdrawn: it hid the store, which does not answer", "route", route.Text,
			"fix", "if the network config holds the address of the store, put another Network into it; the routes come back with the config")
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	if due := n.news(pace.Notice{Key: "unhide", Text: err.Error()}); len(due) > 0 {
		n.log.WarnContext(ctx, "cannot tell whether a route of the overlay hides the store", "err", err)
	}
}
