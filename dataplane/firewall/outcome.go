package firewall

// tri is an answer that need not be known.
type tri uint8

const (
	no tri = iota
	maybe
	yes
)

func is(b bool) tri {
	if b {
		return yes
	}
	return no
}

func (t tri) not() tri { return yes - t }

// and is no if one of them is, and yes if both are.
func (t tri) and(o tri) tri { return min(t, o) }

// or is yes if one of them is, and no if both are.
func (t tri) or(o tri) tri { return max(t, o) }

// outcome is a set of the ways that a rule or a chain may end.
type outcome uint8

const (
	accepted outcome = 1 << iota
	dropped
	onward // to the next rule, or back to the chain that jumped here
	returned
)

// verdict is what a rule does if its conditions are met.
type verdict struct {
	may  outcome
	jump string // to a chain, by its name; "" for none
	goes bool   // the jump does not come back
}

// walk follows a packet through the rules of one chain. It notes the first rule that drops.
type walk struct {
	may  outcome // so far
	rule string  // that drops, in words
}

// meet takes a rule into account. It reports whether no later rule can be reached.
func (w *walk) meet(match tri, may outcome, rule string) (ends bool) {
	if match == no {
		return false
	}
	if may&dropped != 0 && w.rule == "" {
		w.rule = rule
	}
	w.may |= may &^ onward
	return match == yes && may&onward == 0
}

// chainEnd is what a chain does as a whole, once its last rule is behind: the packet goes back to where it came from.
func (w *walk) chainEnd(ended bool) outcome {
	may := w.may
	if !ended || may&returned != 0 {
		may |= onward
	}
	return may &^ returned
}

// limits bound how much of a packet filter is followed.
const (
	maxDepth = 16     // of jumps, as in the kernel
	maxRules = 20_000 // of one chain: of a longer one nothing is known
	maxSteps = 50_000 // rules that one packet meets in one base chain
)
