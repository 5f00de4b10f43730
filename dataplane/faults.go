package dataplane

import (
	"log/slog"
	"maps"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// Faults holds the present errors of a part. A Sync returns them to its caller, and a repair logs them.
// The zero value is ready; it is for one goroutine at a time.
type Faults struct {
	now     map[string]string // by the address of the peer, and under "" for all peers
	told    map[string]bool   // the errors of now that the log or the caller of Sync was told
	comings pace.Fights       // how often each has come and gone
	notices pace.Notices      // limits the lines about errors that come and go
}

func faultsOf(err error) map[string]string {
	peers, rest := PeerErrors(err)
	now := make(map[string]string, len(peers)+1)
	for _, p := range peers {
		now[p.Peer.Addr.String()] = p.Error()
	}
	if rest != nil {
		now[""] = rest.Error()
	}
	return now
}

// Know remembers err, which the caller of Sync is told, so that Tell does not log it.
func (f *Faults) Know(err error) {
	f.now, f.told = faultsOf(err), map[string]bool{}
	for key := range f.now {
		f.told[key] = true
	}
}

// Tell logs the faults that are new since the last time, and that one that was told is over. One that keeps coming
// and going is logged once in ten minutes.
func (f *Faults) Tell(log *slog.Logger, err error) {
	before := f.now
	f.now = faultsOf(err)
	if maps.Equal(before, f.now) {
		return
	}
	if f.told == nil {
		f.told = map[string]bool{}
	}
	if news := f.news(before); len(news) > 0 {
		log.Warn("cannot be repaired now: trying again until it can", "faults", len(news), "first", f.now[news[0]])
	}
	was := ""
	for key, text := range before {
		if f.now[key] == "" && f.told[key] {
			delete(f.told, key)
			was = text
		}
	}
	if was != "" {
		log.Info("what could not be repaired is as it should be again", "was", was)
	}
}

// news returns the keys of the faults to log.
func (f *Faults) news(before map[string]string) (keys []string) {
	now := time.Now()
	f.comings.Within = comingsWithin
	for key, text := range f.now {
		if before[key] == text {
			continue
		}
		due := true
		if f.comings.Repaired(now, key) {
			notice, _ := f.notices.Due(now, pace.Notice{Key: key})
			due = len(notice) > 0
		}
		if f.told[key] = due; due {
			keys = append(keys, key)
		}
	}
	return keys
}

// comingsWithin is the time in which a fault that comes again keeps coming and going.
const comingsWithin = time.Minute
