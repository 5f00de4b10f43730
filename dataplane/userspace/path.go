package userspace

import (
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// answerInterval keeps answers to packets that are too big from being a flood of
// their own: as many as the kernel sends to all hosts together (icmp_msgs_per_sec).
const answerInterval = time.Millisecond

// answerer tells senders that their packets are too big for the path.
type answerer struct {
	last     time.Time
	headroom int    // in bytes
	buf      []byte // for one answer
}

func newAnswerer(headroom int) answerer {
	return answerer{headroom: headroom, buf: make([]byte, headroom+encap.MaxTooBig)}
}

// tooBig drops p, which is longer than the path takes, and tells its sender. The
// answer comes from where p was going, as those of the kernel's tunnels do
// (iptunnel_pmtud_build_icmp): from an address of its own the host would refuse it.
func (w *sendWorker) tooBig(p *carrier.Packet, e *carrier.Entry, mtu int) {
	w.DropPacket(p.IP(), e.Peer.Addr, dataplane.DropTooBig)
	e.Peer.TurnAway()
	var ip encap.IP
	if encap.ParseIP(p.IP(), &ip) != nil {
		return
	}
	now := time.Now()
	if now.Sub(w.answer.last) < answerInterval {
		return
	}
	a := &w.answer
	clear(a.buf[:a.headroom])
	n := encap.PutTooBig(a.buf[a.headroom:], p.IP(), &ip, ip.Dst, mtu)
	if n == 0 {
		return
	}
	a.last = now
	w.queue.Answer(&carrier.Packet{Buf: a.buf[:a.headroom+n], At: a.headroom})
}
