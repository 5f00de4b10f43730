package guard

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// Until the first Sync the rules know no peers of a VNI or port that is new. Peers may have it already, and so may the device or sockets of this host. Therefore nothing is
// taken or sent there in the name of the network, by whomever. The rules for an earlier port stay meanwhile, and so does the table of an earlier VNI (Config.Synced).

const (
	chainShutIn      = "shut_in"      // what comes for the port
	chainShutOut     = "shut_out"     // what leaves for the port
	chainShutThrough = "shut_through" // what this host forwards
)

func isShut(chain string) bool {
	return chain == chainShutIn || chain == chainShutOut || chain == chainShutThrough
}

// shutChains keep the port shut.
func (b builder) shutChains() []chain {
	in := chain{name: chainShutIn, hook: base(unix.NF_INET_LOCAL_IN, first)}
	b.shutPort(&in, dataplane.DropUnknownVTEP)
	out := chain{name: chainShutOut, hook: base(unix.NF_INET_POST_ROUTING, behindNAT)}
	out.skipLater()
	out.drop(dataplane.DropEgress, toPort(b.Port, false), isUDP(false), vniIs(b.VNI, false), fromHere())
	out.add(accept, b.byUnderlay(false)) // this host may be a router between two VTEPs
	b.shutPort(&out, dataplane.DropEgress)
	through := chain{name: chainShutThrough, hook: base(unix.NF_INET_FORWARD, first)}
	through.add(accept, b.byUnderlay(false))
	for _, f := range b.families() { // see disguised
		for _, at := range vxlanOffsets(f) {
			through.drop(dataplane.DropEgress, of(f), b.flagsAt(at), vniAt(at, b.VNI))
		}
	}
	return []chain{in, out, through}
}

// shutPort drops what is of this network, and fragments of which that cannot be told.
func (b builder) shutPort(c *chain, why dataplane.Drop) {
	c.skipLater()
	c.drop(why, toPort(b.Port, false), isUDP(false), vniIs(b.VNI, false))
	for _, f := range b.families() {
		is := []cond{of(f), isFragment(f), toPort(b.Port, false), isUDP(false)}
		c.add(accept, append(is, hasVNI())...)
		c.drop(dataplane.DropFragment, is...)
	}
}

// shutNew shuts the port, if the table is that of another one. The rest of the table stays until the first Sync.
func (g *Guard) shutNew() error {
	chains, err := g.cfg.encode(facts{shut: true})
	if err != nil {
		return err
	}
	if err := nft.Commit(changeChains(g.name, nil, chains)); err != nil {
		return err
	}
	c, err := read(g.name, false)
	g.text, g.chains, g.isShut = c.text, named(c.chains), true
	return err
}

// Resume implements dataplane.Resumer. If the port is shut until the first Sync, it is opened for the peers of w. The table of an earlier VNI stays: peers may still have that.
func (g *Guard) Resume(w dataplane.Wanted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.synced || !g.isShut || g.isOff() {
		return
	}
	f := g.cfg.factsOf(w, g.judges())
	g.members.admit(w.Peers, f.kind)
	if err := g.write(f); err != nil {
		g.cfg.Log.Debug("the port stays shut until the first Sync", "err", explain(err))
		return
	}
	g.isShut = false
}

// portOf returns the UDP port for whose datagrams a rule is; 0: for no port's.
func portOf(r nft.Rule) uint16 {
	for i, x := range r.Exprs[:max(0, len(r.Exprs)-1)] {
		var p expr.Payload
		var is expr.Cmp
		if x.Name != "payload" || r.Exprs[i+1].Name != "cmp" || expr.Unmarshal(uint8(nft.Inet), x.Data, &p) != nil || p.Base != expr.PayloadBaseTransportHeader || p.Offset != 2 || p.Len != 2 {
			continue
		}
		if expr.Unmarshal(uint8(nft.Inet), r.Exprs[i+1].Data, &is) == nil && len(is.Data) == 2 {
			return uint16(is.Data[0])<<8 | uint16(is.Data[1])
		}
	}
	return 0
}
