package flags

import (
	"slices"

	"github.com/spf13/pflag"
)

// groupKey is the annotation that names a flag's group in --help.
const groupKey = "overlayd_group"

// RegisterGroup notes which flags register adds, so that --help shows them under title.
func RegisterGroup(f *pflag.FlagSet, title string, register func(*pflag.FlagSet)) {
	group := pflag.NewFlagSet(title, pflag.ContinueOnError)
	group.SortFlags = false
	register(group)
	same := map[string][]string{groupKey: {title}} // a map for each flag would take 1 KB
	group.VisitAll(func(flag *pflag.Flag) { flag.Annotations = same })
	f.AddFlagSet(group)
}

// Group is one group of flags.
type Group struct {
	Title string
	Flags *pflag.FlagSet
}

// Groups sorts flags into their groups; those without a group come last.
func Groups(f *pflag.FlagSet) (groups []Group) {
	rest := Group{"Flags", newSet()}
	f.VisitAll(func(flag *pflag.Flag) {
		title := flag.Annotations[groupKey]
		if len(title) == 0 {
			rest.Flags.AddFlag(flag)
			return
		}
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Title == title[0] })
		if i < 0 {
			i = len(groups)
			groups = append(groups, Group{title[0], newSet()})
		}
		groups[i].Flags.AddFlag(flag)
	})
	return append(groups, rest)
}

func newSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	return f
}
