package statustext

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// PrintPeers prints the peers that somebody has asked for, and all that is known of them.
func PrintPeers(w io.Writer, list status.PeerList, now time.Time) error {
	p := printer{bufio.NewWriter(w), now, true}
	for _, n := range list.Networks {
		if len(n.Peers) == 0 {
			continue
		}
		if n.Name != "" {
			fmt.Fprintf(p, "network %s\n", safe(n.Name))
		}
		p.table(n.Peers)
	}
	return p.Flush()
}
