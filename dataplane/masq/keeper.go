package masq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// keeper keeps the rules of one family.
type keeper struct {
	config Config
	family family
	names  names

	want    ruleSet
	settled bool   // want is in place, as far as known
	known   string // the content of nftables then; "" makes apply write
	seen    uint32 // the generation of nftables at which it had that
	blob    string // the content of the legacy tables then
	main    *tool  // writes the rules in iptables mode
	side    *tool  // writes to the legacy tables otherwise

	notices pace.Notices // of what others have to fix
	err     error        // why the rules are not written; nil if they are
}

// apply makes s true, and reports whether it had to write, because the rules were not as it had
// left them.
func (k *keeper) apply(ctx context.Context, s ruleSet) (wrote bool, err error) {
	if !k.settled || !k.want.equal(s) {
		k.known, k.blob = "", ""
		k.main, k.side = nil, nil // iptables may have become another
	}
	k.want, k.settled = s, false
	if err := k.choose(ctx); err != nil {
		return false, err
	}
	// What masquerades is written first: only then do the old rules go.
	steps := []func(context.Context) (bool, error){k.applyNFT, k.applyLegacy}
	if k.inLegacy() {
		steps = []func(context.Context) (bool, error){k.applyLegacy, k.applyNFT}
	}
	for _, step := range steps {
		w, err := step(ctx)
		wrote = wrote || w
		if err != nil {
			return wrote, err
		}
	}
	k.settled = true
	return wrote, nil
}

// byTool reports whether iptables is to write the rules.
func (k *keeper) byTool() bool { return !k.config.NFTables && !k.want.isEmpty() }

func (k *keeper) inLegacy() bool { return k.byTool() && k.main.legacy }

// choose finds iptables if it is needed.
func (k *keeper) choose(ctx context.Context) (err error) {
	if !k.byTool() || k.main != nil {
		return nil
	}
	name := commandOf(k.family)
	if k.main, err = findTool(ctx, k.family, name); err != nil {
		return errNoTool(name, err)
	}
	return nil
}

func (k *keeper) nftWant() nftWant {
	w := nftWant{forward: k.want.forward, foreign: k.byTool() && !k.main.legacy}
	switch {
	case w.foreign:
		w.nat = k.want.masq
	case k.config.NFTables:
		w.own = k.want.masq
	}
	return w
}

func (k *keeper) toolWant() toolWant {
	return toolWant{names: k.names, network: k.want.network, masq: k.want.masq, forward: k.want.forward}
}

// attempts is how often a batch is made again because somebody else made a change meanwhile.
const attempts = 5

// applyNFT makes nftables and the tables of iptables-nft as wanted.
func (k *keeper) applyNFT(ctx context.Context) (wrote bool, err error) {
	w := k.nftWant()
	for range attempts {
		wrote, err = k.tryNFT(ctx, w)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, nft.ErrChanging) {
			break
		}
	}
	if err != nil && len(w.own) == 0 && !w.foreign {
		// A kernel without nftables needs no rules there.
		k.config.Log.Debug("nftables is left alone", "family", k.family.String(), "err", err)
		return false, nil
	}
	return wrote, err
}

func (k *keeper) tryNFT(ctx context.Context, w nftWant) (wrote bool, err error) {
	if k.known != "" {
		if now, err := nft.Generation(k.family); err != nil || now == k.seen {
			return false, err
		}
	}
	s, err := readNFT(k.family, k.names)
	if err != nil {
		return false, err
	}
	if k.known != "" && k.known == s.text() {
		k.seen = s.generation
		return false, nil
	}
	if w.foreign {
		if s, err = k.letTool(ctx, s); err != nil {
			return false, err
		}
	}
	steps, err := s.steps(w)
	if err != nil {
		return false, err
	}
	if err := nft.Commit(steps); err != nil {
		return false, err
	}
	replaced, err := k.replaceFlannels(w.foreign)
	if err != nil {
		return true, err
	}
	if !w.foreign {
		// Was it only us who changed anything since s was read?
		generation := s.generation + min(1, uint32(len(steps))) + replaced
		if s, err = readNFT(k.family, k.names); err != nil {
			return true, err
		}
		if s.generation != generation {
			return true, nft.ErrChanging
		}
	}
	k.known, k.seen = s.text(), s.generation
	return true, nil
}

// isNews reports whether a fault has to be logged.
func (k *keeper) isNews(key, text string) bool {
	due, _ := k.notices.Due(time.Now(), pace.Notice{Key: key, Text: text})
	return len(due) > 0
}

// letTool has iptables write its rules, and returns the state when they were as wanted.
func (k *keeper) letTool(ctx context.Context, s nftState) (nftState, error) {
	for range attempts {
		wrote, err := k.main.ensure(ctx, k.toolWant())
		if err != nil || !wrote {
			return s, err
		}
		if s, err = readNFT(k.family, k.names); err != nil {
			return s, err
		}
	}
	return s, nft.ErrChanging
}

// replaceFlannels removes flannel's rules. Those that cannot be removed, such as a chain that
// somebody jumps to, do no harm beside the new rules. It returns how many batches it wrote.
func (k *keeper) replaceFlannels(foreign bool) (times uint32, err error) {
	if !k.want.network.IsValid() {
		return 0, nil
	}
	steps, err := flannels(k.family, k.want.network, foreign)
	if err != nil || len(steps) == 0 {
		return 0, err
	}
	err = nft.Commit(steps)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return 1, err
	}
	k.config.Log.Warn("remove the rules of flannel", "family", k.family.String(), "err", err)
	return 0, nil
}

// applyLegacy makes the tables of iptables-legacy as wanted. If our rules are elsewhere, an error
// is only logged: the network may work without.
func (k *keeper) applyLegacy(ctx context.Context) (wrote bool, err error) {
	have, err := readLegacy(k.family)
	if k.inLegacy() {
		if errors.Is(err, fs.ErrPermission) {
			return false, fmt.Errorf("%w: %w", ErrLegacyHidden, err)
		}
		if err != nil || k.blob != "" && k.blob == have.text {
			return false, err
		}
		return k.writeLegacy(ctx, k.main, k.toolWant(), have)
	}
	if err != nil { // as for a user who may not read /proc/net/ip_tables_names
		if ctx.Err() == nil && k.isNews("legacy", err.Error()) {
			k.config.Log.Warn("it is not known whether iptables-legacy drops packets of the overlay: its tables cannot be read",
				"family", k.family.String(), "err", err, "fix", dataplane.FixOr(err, "run overlayd as root, if iptables-legacy is in use"))
		}
		return false, nil
	}
	if k.blob == have.text {
		return false, nil
	}
	wrote, err = k.applySide(ctx, have)
	if err != nil && ctx.Err() == nil && k.isNews("legacy", err.Error()) {
		k.config.Log.Warn("legacy iptables tables are in use, and only iptables-legacy with CAP_NET_RAW can write them",
			"family", k.family.String(), "drops_forwarded_packets", have.drops, "err", err,
			"fix", dataplane.FixOr(err, "install iptables-legacy, or run "+commandOf(k.family)+"-legacy -P FORWARD ACCEPT"))
	}
	return wrote, nil
}

// applySide writes to legacy tables that exist beside those in use.
func (k *keeper) applySide(ctx context.Context, have legacyTables) (wrote bool, err error) {
	w := k.toolWant()
	w.masq = nil
	if !have.drops {
		w.forward = nil // an accept at the end of the chain would change nothing
	}
	if !have.drops && !have.mentions() {
		k.blob = have.text
		return false, nil
	}
	if k.side == nil {
		if k.side, err = findLegacy(ctx, k.family); err != nil {
			k.blob = have.text // do not search again until something changes
			return false, err
		}
	}
	return k.writeLegacy(ctx, k.side, w, have)
}

// writeLegacy makes w true with a tool. have is the present content of the tables.
func (k *keeper) writeLegacy(ctx context.Context, t *tool, w toolWant, have legacyTables) (wrote bool, err error) {
	for range attempts {
		again, err := t.ensure(ctx, w)
		if err != nil {
			return wrote, err
		}
		if !again {
			k.blob = have.text
			return wrote, nil
		}
		wrote = true
		if have, err = readLegacy(k.family); err != nil {
			return wrote, err
		}
	}
	return wrote, nft.ErrChanging
}
