package node

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// notifyPatience is how long whoever tells the service manager something waits until it is told.
	notifyPatience = time.Second
	// notifyLate is how long a service manager may take before the log says so.
	notifyLate = 5 * time.Second
)

// notifier tells the service manager states of sd_notify(3), one after the other. The socket of a service manager that hangs, as systemd does
// that has crashed ("Freezing execution"), soon takes no message any more. Nobody waits long for that.
type notifier struct {
	log  *slog.Logger
	send func(state string) // may wait for ever; nil: no service manager

	mu      sync.Mutex
	waiting []string      // the last of each kind
	sent    chan struct{} // closed once nothing waits; nil: nothing does
	since   time.Time     // of what is being sent
	hangs   bool          // whoever tells does not wait any more
	said    bool          // the log has it
}

// tell tells the service manager a state.
func (n *notifier) tell(state string) {
	if n.send == nil {
		return
	}
	sent := n.add(state)
	if sent == nil {
		return
	}
	select {
	case <-sent:
	case <-time.After(notifyPatience):
		n.mu.Lock()
		n.hangs = n.sent == sent
		n.mu.Unlock()
	}
}

// add has a state sent. It returns what to wait for; nil: nothing.
func (n *notifier) add(state string) (sent <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kind, _, _ := strings.Cut(state, "=")
	n.waiting = append(slices.DeleteFunc(n.waiting, func(s string) bool { return strings.HasPrefix(s, kind+"=") }), state)
	if n.sent == nil {
		n.sent, n.since = make(chan struct{}), time.Now()
		go n.drain()
	}
	if !n.hangs {
		return n.sent
	}
	if late := time.Since(n.since); late > notifyLate && !n.said {
		n.said = true
		n.log.Warn("the service manager takes no messages: it does not know how this daemon is. All else goes on",
			"err", errors.New("its socket is full"), "after", late.Round(time.Second), "fix", "see whether it hangs: systemctl is-system-running")
	}
	return nil
}

// drain sends until nothing waits.
func (n *notifier) drain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		state := n.waiting[0]
		n.waiting, n.since = n.waiting[1:], time.Now()
		n.mu.Unlock()
		n.send(state)
		n.mu.Lock()
	}
	if n.said {
		n.log.Info("the service manager takes messages again")
	}
	close(n.sent)
	n.sent, n.hangs, n.said = nil, false, false
}
