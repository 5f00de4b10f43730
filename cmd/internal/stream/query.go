package stream

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
)

// Path is the route of the admin socket that answers with a stream.
const Path = "/v1/capture"

const (
	// MaxSnap is the most bytes of a packet that can be asked for: more than any packet has.
	MaxSnap = 1 << 18
	maxName = 256
)

// Query says which packets are wanted, and how much of them.
type Query struct {
	Peer  string // as in status.FindPeers; empty: packets of all peers, and of nobody known
	Drops bool   // only packets that were dropped
	Count int    // packets after which the stream ends; 0: never
	Snap  int    // bytes of each packet, from the inner Ethernet header on, at most MaxSnap; 0: all
}

// String returns the query as it stands in a URL, with its question mark.
func (q Query) String() string {
	v := url.Values{}
	set := func(name, value string, is bool) {
		if is {
			v.Set(name, value)
		}
	}
	set("peer", q.Peer, q.Peer != "")
	set("drops", "true", q.Drops)
	set("count", strconv.Itoa(q.Count), q.Count != 0)
	set("snap", strconv.Itoa(q.Snap), q.Snap != 0)
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// ParseQuery reads a query. The error names the value that is wrong.
func ParseQuery(v url.Values) (q Query, err error) {
	for name, values := range v {
		if len(values) != 1 {
			return Query{}, fmt.Errorf("%.40q is given %d times", name, len(values))
		}
		value := values[0]
		switch name {
		case "peer":
			q.Peer = value
			if value == "" || len(value) > maxName {
				err = fmt.Errorf("want 1 to %d characters", maxName)
			}
		case "drops":
			if q.Drops, err = strconv.ParseBool(value); err != nil {
				err = errors.New("want true or false") // strconv's error repeats the whole value
			}
		case "count":
			q.Count, err = positive(value, 1<<62)
		case "snap":
			q.Snap, err = positive(value, MaxSnap)
		default:
			return Query{}, fmt.Errorf("%.40q: want peer, drops, count or snap", name)
		}
		if err != nil {
			return Query{}, fmt.Errorf("%s %.40q: %w", name, value, err)
		}
	}
	return q, nil
}

// positive reads a number from 1 to most.
func positive(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("want a number from 1 to %d", most)
	}
	return n, nil
}
