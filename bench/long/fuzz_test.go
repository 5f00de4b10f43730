package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFuzzTargets: what the go command would run is listed, and nothing else.
func TestFuzzTargets(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                  "module x\n",
		"a/b/one_test.go":         "package b\n\nfunc FuzzOne(f *testing.F) {}\n\nfunc FuzzTwo(f *testing.F) {}\n",
		"a/b/plain.go":            "package b\n\nfunc FuzzPlain(f *testing.F) {}\n",
		"a/top_test.go":           "package a_test\n\n// func FuzzComment(\nfunc TestX(t *testing.T) {}\n\nfunc (x) FuzzMethod() {}\n",
		"c/c_test.go":             "package c\n\nfunc FuzzThree(f *testing.F) {}\n",
		"c/c_plan9_test.go":       "package c\n\nfunc FuzzOtherSystem(f *testing.F) {}\n",
		"c/tag_test.go":           "//go:build kube\n\npackage c\n\nfunc FuzzTag(f *testing.F) {}\n",
		"c/testdata/d_test.go":    "package d\n\nfunc FuzzData(f *testing.F) {}\n",
		"_old/e_test.go":          "package e\n\nfunc FuzzOld(f *testing.F) {}\n",
		".hidden/f_test.go":       "package f\n\nfunc FuzzHidden(f *testing.F) {}\n",
		"peers/g/go.mod":          "module y\n",
		"peers/g/deep/in_test.go": "package g\n\nfunc FuzzOtherModule(f *testing.F) {}\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := fuzzTargets(root)
	if want := []fuzzTarget{{"./a/b", "FuzzOne"}, {"./a/b", "FuzzTwo"}, {"./c", "FuzzThree"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := fuzzTargets(filepath.Join(root, "none")); err == nil {
		t.Error("a directory that is not there has targets")
	}
}

// TestFuzzRows: each target of this module is a row.
func TestFuzzRows(t *testing.T) {
	targets, err := fuzzTargets("../..")
	if err != nil || len(targets) == 0 {
		t.Fatal(targets, err)
	}
	list := names(allRows(t))
	for _, f := range targets {
		if !slices.Contains(list, f.row().name) {
			t.Errorf("%s of %s is no row", f.name, f.pkg)
		}
	}
}
