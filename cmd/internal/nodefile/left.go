package nodefile

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Left tells what overlays have left in the network namespace. VNIs tell the devices and the traffic rules,
// networks the routes that do not lead to a device.
type Left struct {
	VNIs     []uint32
	Networks []netip.Prefix
}

// LastLeft returns what the last daemon with a subnet file has left, without a claim.
func LastLeft(subnetFile string) (Left, error) {
	f, err := hostfile.Open(Path(subnetFile))
	if errors.Is(err, os.ErrNotExist) {
		return Left{}, nil
	}
	if err != nil {
		return Left{}, err
	}
	defer f.Close()
	text, err := (&File{file: f, path: f.Name()}).text()
	return parseLeft(text), err
}

// text has a line for each of them.
func (l Left) text() string {
	var b strings.Builder
	for _, v := range l.VNIs {
		fmt.Fprintf(&b, "vni %d\n", v)
	}
	for _, p := range l.Networks {
		fmt.Fprintf(&b, "network %s\n", p)
	}
	return b.String()
}

// parseLeft reads what text has written, and skips the rest.
func parseLeft(text string) (l Left) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, " ")
		value, whole := strings.CutSuffix(value, "\n")
		if !whole { // half written
			continue
		}
		switch key {
		case "vni":
			if v, err := strconv.ParseUint(value, 10, 24); err == nil {
				l.VNIs = append(l.VNIs, uint32(v))
			}
		case "network":
			if p, err := netip.ParsePrefix(value); err == nil {
				l.Networks = append(l.Networks, p)
			}
		}
	}
	return l
}

// Without returns those of l that are not in other.
func (l Left) Without(other Left) Left {
	return Left{
		slices.DeleteFunc(slices.Clone(l.VNIs), func(v uint32) bool { return slices.Contains(other.VNIs, v) }),
		slices.DeleteFunc(slices.Clone(l.Networks), func(p netip.Prefix) bool { return slices.Contains(other.Networks, p) }),
	}
}
