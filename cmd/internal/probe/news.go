package probe

import (
	"context"
	"log/slog"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// newsPerSecond is how many changes are logged one by one in a second; of the rest only the number is.
const newsPerSecond = 100

// change is a peer that is in another state now.
type change struct {
	level slog.Level
	text  string
	attrs []any
}

// news is what is to be logged.
type news struct {
	changes []change
	more    int       // that have no line of their own
	began   time.Time // when the second of count began
	count   int       // of changes in that second
}

// add notes that a peer is in another state, after the last one has lasted for some time.
func (n *news) add(log *slog.Logger, q *peer, lasted time.Duration, f *facts) {
	level, text := tone(q)
	q.told = level == slog.LevelWarn || q.told && q.state != status.ProbeOK
	if !log.Enabled(context.Background(), level) {
		return
	}
	if now := time.Now(); now.Sub(n.began) > time.Second {
		n.began, n.count = now, 0
	}
	if n.count++; n.count > newsPerSecond {
		n.more++
		return
	}
	attrs := []any{"subnet", q.subnet, "vtep", q.vtep}
	if err, fix := q.explain(f); err != "" {
		attrs = append(attrs, "reason", q.reason, "err", err, "fix", fix)
	} else {
		attrs = append(attrs, "rtt", q.rtt)
	}
	n.changes = append(n.changes, change{level, text, append(attrs, "after", lasted.Round(time.Millisecond))})
}

// tone returns the level and the text of the line about a change. The level is Debug if a peer answers that nobody has missed,
// or if it is not known yet whether a peer answers.
func tone(q *peer) (slog.Level, string) {
	switch {
	case q.state == status.ProbeOK && q.told:
		return slog.LevelInfo, "peer can be reached again"
	case q.state == status.ProbeOK:
		return slog.LevelDebug, "peer answers"
	case q.state == status.ProbeDegraded:
		return slog.LevelWarn, "peer can be reached only in part"
	case q.state == status.ProbeDown:
		return slog.LevelWarn, "peer cannot be reached"
	case q.reason == status.ReasonNotSent:
		return slog.LevelWarn, "peer cannot be probed"
	}
	return slog.LevelDebug, "peer is not known to answer"
}

// tell logs what is new.
func (p *Prober) tell() {
	p.mu.Lock()
	all, more, err := p.news.changes, 0, p.noSocket
	p.news.changes = nil
	if p.news.more > 0 && time.Since(p.news.began) > time.Second {
		more, p.news.more = p.news.more, 0
	}
	p.mu.Unlock()
	for _, c := range all {
		p.cfg.Log.Log(context.Background(), c.level, c.text, c.attrs...)
	}
	if more > 0 {
		p.cfg.Log.Warn("more peers have changed: not logged one by one", "peers", more)
	}
	if err == nil {
		return
	}
	if due, _ := p.notices.Due(time.Now(), pace.Notice{Text: err.Error()}); len(due) > 0 {
		p.cfg.Log.Warn("peers cannot be probed", "err", err, "fix", fixOf(err))
	}
}
