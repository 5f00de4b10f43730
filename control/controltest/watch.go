package controltest

import (
	"context"

	"github.com/overlayd/overlayd/control"
)

// watcher is one running Watch. Memory.mu guards its fields.
type watcher struct {
	m       *Memory
	gap     bool                // the next update is a Reset
	pending []control.Update    // not sent yet
	wake    chan struct{}       // has room for one: something is there to send
	out     chan control.Update // unbuffered
}

func (m *Memory) watch(ctx context.Context) <-chan control.Update {
	w := &watcher{m: m, gap: true, wake: make(chan struct{}, 1), out: make(chan control.Update)}
	m.mu.Lock()
	m.watches[w] = struct{}{}
	w.poke()
	m.mu.Unlock()
	go w.run(ctx) // ends with ctx, which its caller sees by the closed channel
	return w.out
}

// tell adds the present state of key to every watch.
func (m *Memory) tell(key string) {
	for w := range m.watches {
		var u control.Update
		m.addTo(&u, key)
		w.pending = append(w.pending, u)
		w.poke()
	}
}

// gap makes every watch begin again.
func (m *Memory) gap() {
	for w := range m.watches {
		w.gap = true
		w.poke()
	}
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be sent.
func (w *watcher) next() []control.Update {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.down != nil {
		return nil
	}
	updates := w.pending
	if w.gap {
		updates = []control.Update{w.m.snapshot()}
	}
	w.pending, w.gap = nil, false
	return updates
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	defer func() {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		delete(w.m.watches, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for _, u := range w.next() {
			select {
			case <-ctx.Done():
				return
			case w.out <- u:
			}
		}
	}
}
