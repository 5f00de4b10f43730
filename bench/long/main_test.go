package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func names(rows []row) (out []string) {
	for _, r := range rows {
		out = append(out, r.name)
	}
	return out
}

// allRows are the rows of this module.
func allRows(t *testing.T) []row {
	t.Helper()
	list, err := rows("../..")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The same seed draws the same rows in the same order; they fit the time.
func TestDraw(t *testing.T) {
	const limit = 5 * time.Minute
	first := draw(allRows(t), limit, 7)
	if again := draw(allRows(t), limit, 7); !slices.Equal(names(first), names(again)) {
		t.Errorf("seed 7 drew %q, then %q", names(first), names(again))
	}
	if other := draw(allRows(t), limit, 8); slices.Equal(names(first), names(other)) {
		t.Errorf("seeds 7 and 8 both drew %q", names(first))
	}
	var total time.Duration
	for _, r := range first {
		total += r.takes
	}
	if total > limit || total < limit-70*time.Second {
		t.Errorf("drew %s of %s", total, limit)
	}
}

// Every row names a package of this module and, if it names tests, tests that exist.
func TestRowsExist(t *testing.T) {
	seen, tests := map[string]bool{}, map[string][]string{}
	for _, r := range allRows(t) {
		if seen[r.name] {
			t.Errorf("two rows are called %q", r.name)
		}
		seen[r.name] = true
		if tests[r.pkg] == nil {
			tests[r.pkg] = testsOf(t, filepath.Join("../..", r.pkg))
		}
		for i, a := range r.args[:len(r.args)-1] {
			pattern, _, _ := strings.Cut(r.args[i+1], "/")
			if pattern == "^$" || (a != "-run" && a != "-fuzz") {
				continue
			}
			if !slices.ContainsFunc(tests[r.pkg], regexp.MustCompile(pattern).MatchString) {
				t.Errorf("%s: nothing in %s matches %q", r.name, r.pkg, pattern)
			}
		}
	}
}

// testsOf returns the names of the tests in a directory, whatever their build tags.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range function.FindAllSubmatch(b, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// TestOnly: an invalid expression, and one that matches no row, is named.
func TestOnly(t *testing.T) {
	for _, only := range []string{"(", "no such row"} {
		err := run(t.Context(), []string{"--only", only}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), "--only") || !strings.Contains(err.Error(), only) {
			t.Errorf("%q: %v", only, err)
		}
	}
}

// A row that fails is named with the seed, and the others run all the same.
func TestFailureNamesRowAndSeed(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	bad := []row{{name: "first", pkg: "./nonexistent1"}, {name: "second", pkg: "./nonexistent2"}}
	err := runAll(t.Context(), &out, bad, 42)
	if err == nil || !strings.Contains(err.Error(), "2 of 2 rows failed with seed 42") {
		t.Errorf("got %v\n%s", err, &out)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := runAll(ctx, &out, bad, 42); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
}

func TestFlags(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--time", "soon"}, &out); err == nil {
		t.Error("a wrong time is accepted")
	}
	if err := run(t.Context(), []string{"--time", "1s", "--seed", "9"}, &out); err != nil || !strings.HasPrefix(out.String(), "seed 9, 0 of ") {
		t.Errorf("got %v, %q", err, &out)
	}
}
