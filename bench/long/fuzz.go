package main

import (
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// fuzzTarget is one fuzz target of this module.
type fuzzTarget struct{ pkg, name string }

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// fuzzTargets lists the fuzz targets below root, the directory of a module, in the order of their files. As the go command does, it leaves out
// testdata, directories whose names begin with "." or "_", modules of their own, and files that another system or a tag would have to build.
func fuzzTargets(root string) (targets []fuzzTarget, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && leftOut(path):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		dir, file := filepath.Split(path)
		if built, err := build.Default.MatchFile(dir, file); err != nil || !built {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range fuzzFunc.FindAllStringSubmatch(string(text), -1) {
			targets = append(targets, fuzzTarget{"./" + pkg, m[1]})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for fuzz targets: %w", err)
	}
	return targets, nil
}

// leftOut reports whether the go command looks for no packages in a directory.
func leftOut(dir string) bool {
	name := filepath.Base(dir)
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

// row runs the target for a while.
func (t fuzzTarget) row() row {
	return row{name: "fuzz: " + t.pkg + " " + t.name, pkg: t.pkg, takes: 70 * time.Second,
		args: []string{"-run", "^$", "-fuzz", "^" + t.name + "$", "-fuzztime", "45s", "-fuzzminimizetime", "10x"}}
}
