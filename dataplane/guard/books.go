package guard

import (
	"sync"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// Drops counts dropped packets by their reasons.
type Drops = [dataplane.NumDrops]uint64

// books keep the counters over the tables that come and go.
type books struct {
	mu    sync.Mutex
	gone  Drops // of tables before the present one
	start Drops // what the present one had counted when this process began
	last  Drops // what the present one has counted, when it was last read
}

// begin leaves out what the table has counted so far.
func (b *books) begin(table string) (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start, err = counters(table)
	b.last = b.start
	return err
}

// keep notes what the table has counted before it goes.
func (b *books) keep(table string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read(table)
}

// restart is called when another table has begun to count from zero.
func (b *books) restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.gone {
		b.gone[i] += b.last[i] - b.start[i]
	}
	b.start, b.last = Drops{}, Drops{}
}

// sum returns what was counted since this process began.
func (b *books) sum(table string) (sum Drops) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read(table)
	for i := range sum {
		sum[i] = b.gone[i] + b.last[i] - b.start[i]
	}
	return sum
}

// read reads the table. A counter that is lower than before is of another table, which somebody else has put there.
func (b *books) read(table string) {
	now, err := counters(table)
	if err != nil {
		return
	}
	for i := range now {
		b.last[i] = max(b.last[i], now[i])
	}
}

func counters(table string) (d Drops, err error) {
	err = nft.Read(nft.Inet, func(r nft.Reader) error {
		byName, err := r.Counters(table)
		for _, why := range reasons {
			d[why] = byName[why.String()]
		}
		return err
	})
	return d, err
}

// Drops returns what the rules have dropped since Open, by reason.
func (g *Guard) Drops() Drops {
	if g.cfg.Check == dataplane.SourceOff {
		return Drops{}
	}
	return g.books.sum(g.name)
}
