package nodefile

import "strings"

// The node file has the network config of the last session: a daemon that starts while the store does not answer goes on with that.

const configKey = "config "

// maxConfigText bounds the config, in bytes: the other lines of the file need room, too.
const maxConfigText = 2048

// UseConfig notes the network config of the session that begins, or that goes on with another one: a line of text.
func (n *File) UseConfig(text string) error {
	if n == nil || len(text) > maxConfigText {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.config = text
	return n.write()
}

// LastConfig returns what UseConfig has noted, in this run or the last one; empty: nothing.
func (n *File) LastConfig() string {
	if n == nil {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.config
}

func parseConfig(text string) (config string) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, configKey)
		if value, whole := strings.CutSuffix(value, "\n"); ok && whole {
			config = value
		}
	}
	return config
}
