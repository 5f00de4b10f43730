package guard

import (
	"sync"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// Drops counts dropped packets by their reasons.
type Drops = [dataplane.NumDrops]uint64

// books sum up the counters of the present table and of earlier ones.
type books struct {
	mu    sync.Mutex
	gone  Drops // counts of earlier tables
	start Drops // count of the present table when this process began
	last  Drops // count of the present table when it was last read
}

// begin excludes what the table has counted so far.
func (b *books) begin(table string) (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start, err = counters(table)
	b.last = b.start
	return err
}

// keep stores what the table has counted, before the table is removed.
func (b *books) keep(table string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read(table)
}

// restart is called when a new table has begun to count from zero.
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

// read reads the counters of the table. If one is lower than before, somebody else has reset it or put another table there. Then it
// counts from zero, and the earlier count stays.
func (b *books) read(table string) {
	now, err := counters(table)
	if err != nil {
		return
	}
	for i := range now {
		if now[i] < b.last[i] {
			b.gone[i], b.start[i] = b.gone[i]+b.last[i]-b.start[i], 0
		}
		b.last[i] = now[i]
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
