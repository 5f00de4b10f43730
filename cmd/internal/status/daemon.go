package status

import (
	"fmt"
	"time"
)

// Daemon is how a daemon is: the answer of GET /v1/status. It is a value.
type Daemon struct {
	V        int       `json:"v"` // Version
	Process  Process   `json:"process"`
	At       time.Time `json:"at"`    // when this was so
	Ready    bool      `json:"ready"` // it is known which networks there are, and all of them are ready
	Verdict  Verdict   `json:"verdict"`
	Warnings []Warning `json:"warnings,omitempty"` // the gravest first
	Networks []Network `json:"networks"`           // by name
	Admin    *Admin    `json:"admin,omitempty"`

	Endpoints []Endpoint `json:"endpoints,omitempty"` // of the flags, in their order

	LeftOut int `json:"left_out,omitempty"` // peers and entries of the store that were too many to be listed
	// PeersLeftOut is how many of LeftOut are peers.
	PeersLeftOut int `json:"peers_left_out,omitempty"`
}

// Process is the process of a daemon.
type Process struct {
	Host    string    `json:"host"` // name of this node
	Version string    `json:"version,omitempty"`
	PID     int       `json:"pid"`
	Start   time.Time `json:"start"`

	LogLinesLost uint64    `json:"log_lines_lost,omitempty"` // that could not be written
	LogBlocked   time.Time `json:"log_blocked,omitzero"`     // since when whoever has the log takes no line; zero: it does
}

// Admin counts what the admin socket of a daemon has done since its start.
type Admin struct {
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"`  // requests without the right to be answered
	Dropped  uint64 `json:"dropped"`  // connections, to make room for others
	Panics   uint64 `json:"panics"`   // faults of overlayd
	Restored uint64 `json:"restored"` // sockets that somebody had removed
}

// Endpoint is a TCP port at which the daemon answers.
type Endpoint struct {
	Name      string    `json:"name"` // what its flags begin with
	Address   string    `json:"address"`
	Listening bool      `json:"listening"`
	Since     time.Time `json:"since,omitzero"` // when Listening became what it is; zero: it was not tried yet
	Tries     uint64    `json:"tries"`          // to listen, the last of which has worked if Listening
	Err       string    `json:"err,omitempty"`  // why it does not listen
	Fix       string    `json:"fix,omitempty"`
}

// Report returns how a daemon with these networks is, and what to make of it.
func Report(p Process, ready bool, networks []Network, endpoints ...Endpoint) Daemon {
	d := Daemon{V: Version, Process: p, At: time.Now(), Ready: ready, Networks: networks, Endpoints: endpoints}
	d.Warnings = Judge(d)
	d.Verdict = verdictOf(d.Warnings)
	return d
}

// judgeLog says that the log leads nowhere. The daemon goes on without it.
func judgeLog(p Process) []Warning {
	if p.LogBlocked.IsZero() {
		return nil
	}
	return []Warning{{ID: "log_blocked", State: Healthy, Text: fmt.Sprintf("nobody takes the log of this daemon: lines wait, and %d are lost so far", p.LogLinesLost),
		Fix: "see why whoever reads standard error does not: the journal, the log driver of the container, a pager", Since: p.LogBlocked}}
}
