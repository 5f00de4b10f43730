package nodefile

import (
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// TestLeftoversSpoilt: of a file that somebody or a crash has cut, only whole lines count.
func TestLeftoversSpoilt(t *testing.T) {
	text := "\nvni 0\nvni 16777216\nvni x\nvni 3\nnetwork 10.5.0.0\nother 1\nnetwork 10.6.0.0/16\nvni 1"
	want := Left{[]uint32{0, 3}, []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}}
	if got := parseLeft(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLeftoversText: what is remembered is read as it was, and what the next session takes over is
// not left.
func TestLeftoversText(t *testing.T) {
	all := Left{[]uint32{1, 7, 16777215}, prefixes("10.5.0.0/16", "fd00:5::/48")}
	if got := parseLeft(all.text()); !reflect.DeepEqual(got, all) {
		t.Errorf("%q is read as %v", all.text(), got)
	}
	if text := (Left{}).text(); text != "" {
		t.Errorf("nothing is %q", text)
	}
	for _, c := range []struct{ next, want Left }{
		{Left{}, all},
		{all, Left{VNIs: []uint32{}, Networks: prefixes()}},
		{Left{[]uint32{7}, prefixes("10.5.0.0/16")}, Left{[]uint32{1, 16777215}, prefixes("fd00:5::/48")}},
		{Left{[]uint32{2}, prefixes("10.5.0.0/24")}, all},
	} {
		if got := all.Without(c.next); !slices.Equal(got.VNIs, c.want.VNIs) || !slices.Equal(got.Networks, c.want.Networks) {
			t.Errorf("without %v: %v, want %v", c.next, got, c.want)
		}
	}
	if len(all.VNIs) != 3 || all.VNIs[0] != 1 {
		t.Errorf("the leftovers themselves were changed: %v", all)
	}
}

// TestLastLeft: what a daemon has left is read without a claim, while it runs and afterwards, and no file is made.
func TestLastLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	if got, err := LastLeft(file); err != nil || !reflect.DeepEqual(got, Left{}) {
		t.Errorf("without a file: %v, %v", got, err)
	}
	if found, _ := filepath.Glob(file + "*"); len(found) > 0 {
		t.Errorf("made %q", found)
	}
	n, err := Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	want := Left{VNIs: []uint32{7}}
	if err := n.Remember(want); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"while it runs", "afterwards"} {
		if got, err := LastLeft(file); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
		n.Release()
	}
}
