package control

import (
	"fmt"
	"strings"
)

// CheckNetworkName returns what is wrong with the name of one of several networks, which is a part
// of keys, P/<name>/config, and of file names. Names that begin with subnets are refused because a
// flanneld takes all keys that begin with P/subnets for leases (facts D1).
func CheckNetworkName(name string) error {
	switch {
	case !isNetworkName(name):
		return fmt.Errorf("network name %.80q: want 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or a digit", name)
	case strings.HasPrefix(name, "subnets") || name == "overlayd" || name == "config":
		return fmt.Errorf("network name %q: what begins with subnets, overlayd and config are keys of their own below the etcd prefix", name)
	}
	return nil
}

// maxNetworkName bounds the name of a network, in bytes.
const maxNetworkName = 63

// isNetworkName does without a regular expression, which would be most of the work with a list of many networks.
func isNetworkName(name string) bool {
	for i := range len(name) {
		c := name[i]
		alphanumeric := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || !strings.ContainsRune("._-", rune(c))) {
			return false
		}
	}
	return name != "" && len(name) <= maxNetworkName
}
