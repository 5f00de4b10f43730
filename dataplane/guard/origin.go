package guard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// The origin of a datagram is the VTEP that it is from. arrive and datagrams write it into the packet's secmark, of 32 bits, which the kernel copies to
// each packet that it splits from a superpacket and keeps when it takes the outer headers off. arrive and inner look it up with the inner source. They take it off
// UDP, and off every packet if a security module may look, which costs each of them something. Other packets keep it. No packet from elsewhere is let in for its secmark. 0 is nobody. That of IPv4 is the outer source itself. That of IPv6 is a hash of it,
// with a seed that only this host knows: no VTEP can choose an address that has another's. The seed stays with the
// process and with the table, so that neither a new session nor a new daemon changes the origin of a packet on its way.

// origins reports whether inner asks for the origin: any VTEP may be behind a NAT.
func (c *Config) origins() bool { return !c.noOrigins && c.Check != dataplane.SourceInner }

// secmarks reports whether the secmark says that a datagram was accepted: by whom it is from, or with SourceInner that it was judged. Otherwise the mark says so. With
// GBP it cannot: the kernel writes the group into it.
func (c *Config) secmarks() bool { return c.origins() || c.GBP && !c.noOrigins }

// accepted is the condition that the datagram was accepted, or was not. It is for what has no origin.
func (c *Config) accepted(not bool) cond {
	if !c.secmarks() {
		return marked(c.Mark, not)
	}
	return c.isJudged(not)
}

// setAccepted and clearAccepted are no conditions.
func (c *Config) setAccepted() cond {
	if c.secmarks() {
		return c.setJudged()
	}
	return setMark(c.Mark)
}

func (c *Config) clearAccepted() cond {
	if c.secmarks() {
		return clearOrigin()
	}
	return clearMark(c.Mark)
}

// originSet is the set of origins and inner sources that belong together, where the inner one is a prefix of that length.
func originSet(outer, inner family, bits int) string {
	if outer == ipv4 {
		return pairSet(outer, inner, bits)
	}
	return fmt.Sprintf("origin4%s_%d", digits(inner, bits), bits)
}

// vtepSet is the set of the origins of VTEPs over IPv6.
const vtepSet = "vtep4_32"

// origin is the field of the origin.
func origin() field { return field{family: ipv4, text: "secmark", secmark: true} }

// isVTEP is the condition that the origin is a VTEP.
func isVTEP(outer family) cond {
	if outer == ipv4 {
		return in(hostSet(outer), false, bitsOf(ipv4), origin(), origin())
	}
	return in(vtepSet, false, bitsOf(ipv4), origin())
}

// isNobodys are the conditions that the origin is no VTEP: datagrams has not accepted the packet.
func (b builder) isNobodys() (conds []cond) {
	for _, outer := range b.families() {
		switch {
		case outer == ipv4:
			conds = append(conds, in(hostSet(outer), true, bitsOf(ipv4), origin(), origin()))
		case b.sets[vtepSet]:
			conds = append(conds, in(vtepSet, true, bitsOf(ipv4), origin()))
		}
	}
	return conds
}

// disown takes the origin of a VTEP from a datagram of another VNI that has another outer source. Root of any network namespace of this kernel,
// such as a container's, can give a packet a secmark, and have a superpacket hide datagrams of this network behind the first one. An
// origin that fits may be from another network's guard, whose chains come earlier or later than these.
func (b builder) disown(c *chain) {
	if !b.kernel || !b.secmarks() {
		return
	}
	c.add(none, b.isJudged(false), clearOrigin())
	if !b.origins() {
		return
	}
	for _, of := range b.families() {
		for _, outer := range b.families() {
			if b.sets[originSet(of, of, bitsOf(of))] && (outer == ipv4 || b.sets[vtepSet]) {
				c.add(none, misfits(of), isVTEP(outer), clearOrigin())
			}
		}
	}
}

// misfits is the condition that the packet is of that family, and its origin is not that of the peer that has its outer source.
func misfits(f family) cond {
	is, not := of(f), in(originSet(f, f, bitsOf(f)), true, bitsOf(f), origin(), outerSource(f))
	return cond{is.text + ", " + not.text, slices.Concat(is.exprs, not.exprs)}
}

// setOrigin is no condition: it notes the outer source, which the registers still have of the condition before. That has looked it up as
// the first of its fields.
func (c *Config) setOrigin(outer family) cond {
	then := cond{text: "secmark = ip saddr"}
	if outer == ipv6 {
		then.text = "secmark = jhash ip6 saddr"
		then.exprs = append(then.exprs, &expr.Hash{SourceRegister: words, DestRegister: words, Length: uint32(bitsOf(outer) / 8), Modulus: math.MaxUint32, Seed: c.seed, Offset: 1, Type: expr.HashTypeJenkins})
	}
	then.exprs = append(then.exprs, toSecmark(words))
	return then
}

// judged is the secmark of a datagram that has been judged whole, because no other one can be hidden behind it. As an origin it would be in 255.0.0.0/8, where
// no host is.
func (c *Config) judged() []byte {
	return binary.BigEndian.AppendUint32(nil, 0xff<<24|c.VNI)
}

func (c *Config) isJudged(not bool) cond {
	op, sign := isOrNot(not)
	return cond{"secmark " + sign + " judged", append(origin().load(reg1, bitsOf(ipv4)), &expr.Cmp{Op: op, Register: reg1, Data: c.judged()})}
}

// setJudged is no condition.
func (c *Config) setJudged() cond {
	return cond{"secmark = judged", []expr.Any{&expr.Immediate{Register: reg1, Data: c.judged()}, toSecmark(reg1)}}
}

// hasOrigin is the condition that the packet has some secmark.
func hasOrigin() cond {
	return cond{"secmark != 0", append(origin().load(reg1, bitsOf(ipv4)), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)})}
}

// ofLabels is no condition: it takes the origin off again, if a security module may look at it.
func (c *Config) ofLabels() []cond {
	if c.labels {
		return []cond{clearOrigin()}
	}
	return nil
}

// clearOrigin is no condition.
func clearOrigin() cond {
	return cond{"secmark = 0", []expr.Any{&expr.Immediate{Register: reg1, Data: make([]byte, 4)}, toSecmark(reg1)}}
}

func toSecmark(r uint32) expr.Any {
	return &expr.Meta{Key: unix.NFT_META_SECMARK, Register: r, SourceRegister: true}
}

// eachOrigin calls do for each key of a peer over IPv6. Those over IPv4 have theirs in the pair sets.
func (c *Config) eachOrigin(p *dataplane.Peer, outer []netip.Addr, do func(set, key string)) {
	if !c.origins() {
		return
	}
	for _, o := range outer {
		if o.Is4() {
			continue
		}
		key := string(native(originOf(o, c.seed)))
		for _, s := range p.Subnets {
			do(originSet(ipv6, familyOf(s.Addr()), s.Bits()), key+prefixKey(s))
		}
		for _, host := range outer {
			do(originSet(ipv6, ipv6, bitsOf(ipv6)), key+string(host.AsSlice()))
		}
		do(vtepSet, key)
	}
}

// labels reports whether a security module may read secmarks. SELinux and Smack do, and each of them has a file system. AppArmor reads only those
// that a rule of its own has set. If /proc/filesystems cannot be read, labels returns true.
func labels() bool {
	b, err := os.ReadFile("/proc/filesystems")
	return err != nil || bytes.Contains(b, []byte("\tselinuxfs\n")) || bytes.Contains(b, []byte("\tsmackfs\n"))
}

// seedOf returns the seed of the hash that a rule has; 0: it has none.
func seedOf(r nft.Rule) uint32 {
	for _, x := range r.Exprs {
		var h expr.Hash
		if x.Name == "hash" && expr.Unmarshal(uint8(nft.Inet), x.Data, &h) == nil {
			return h.Seed
		}
	}
	return 0
}

// originOf is what the kernel's hash expression makes of an address: 1 and more.
func originOf(a netip.Addr, seed uint32) uint32 {
	b := a.As16()
	return uint32(uint64(jenkins(b, seed))*math.MaxUint32>>32) + 1
}

// jenkins is Bob Jenkins' hash lookup3 of 16 bytes (burtleburtle.net/bob/c/lookup3.c), as the kernel's jhash: 12 bytes are mixed, and the
// last four finish.
func jenkins(k [16]byte, seed uint32) uint32 {
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(k[4*i:]) }
	rol := bits.RotateLeft32
	start := 0xdeadbeef + uint32(len(k)) + seed
	x, y, z := start+word(0), start+word(1), start+word(2)
	for _, by := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		x, z = (x-z)^rol(z, by[0]), z+y
		y, x = (y-x)^rol(x, by[1]), x+z
		z, y = (z-y)^rol(y, by[2]), y+x
	}
	x += binary.LittleEndian.Uint32(k[12:])
	for i, by := range [7]int{14, 11, 25, 16, 4, 14, 24} {
		switch i % 3 {
		case 0:
			z = (z ^ y) - rol(y, by)
		case 1:
			x = (x ^ z) - rol(z, by)
		case 2:
			y = (y ^ x) - rol(x, by)
		}
	}
	return z
}
