package control

import (
	"fmt"
	"regexp"
	"strings"
)

// CheckNetworkName returns what is wrong with the name of one of several networks, which is a part
// of keys, P/<name>/config, and of file names. Names that begin with subnets are refused because a
// flanneld takes all keys that begin with P/subnets for leases (facts D1).
func CheckNetworkName(name string) error {
	ok, _ := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`, name)
	switch {
	case !ok:
		return fmt.Errorf("network name %.80q: want 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or a digit", name)
	case strings.HasPrefix(name, "subnets") || name == "overlayd" || name == "config":
		return fmt.Errorf("network name %q: what begins with subnets, overlayd and config are keys of their own below the etcd prefix", name)
	}
	return nil
}
