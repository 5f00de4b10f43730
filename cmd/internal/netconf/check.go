// Package netconf checks a network config as a person wrote it, tells each mistake with its place, and prints what a config
// means: it is what `overlayd check config` does.
package netconf

import (
	"errors"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
)

// Problem is one mistake in a network config.
type Problem struct {
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // in bytes, from 1
	Key     string `json:"key"`    // in the file's own spelling, such as Backend.vni; empty if it is about the file as a whole
	Message string `json:"message"`
}

// Check parses a network config, and returns its mistakes, keys without effect and what no host can carry among them.
func Check(text []byte) (n control.Network, problems []Problem) {
	add := func(offset int64, keys []configKey, err error) {
		p := Problem{Message: err.Error()}
		p.Line, p.Column = position(text, offset)
		for _, k := range keys {
			if k.offset == offset {
				p.Key = k.path
			}
		}
		problems = append(problems, p)
	}
	keys, err := configKeys(text)
	var at *positionError
	if errors.As(err, &at) {
		add(at.offset, nil, at.err)
		return n, problems
	}
	for _, p := range unknownKeys(keys) {
		add(p.offset, keys, p.err)
	}
	n, err = control.ParseNetwork(text)
	if bad := new(control.NetworkError); errors.As(err, &bad) {
		for _, mistake := range bad.All() {
			add(offsetOf(keys, mistake.Error()), keys, mistake)
		}
	} else if err != nil {
		add(0, nil, err)
	} else if _, err := fit.Anywhere(n); err != nil {
		err = errors.New(strings.TrimPrefix(err.Error(), "network config: "))
		add(offsetOf(keys, err.Error()), keys, err)
	}
	return n, problems
}
