package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
)

// notices writes the licenses and notices of all modules that are linked into some programs, and of the standard library, as
// their licenses want of who hands programs out.
func notices(to io.Writer, files []string) error {
	paths := map[string]bool{}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		for _, m := range info.Deps {
			paths[m.Path] = true
		}
	}
	modules, err := directories(paths)
	if err != nil {
		return err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	modules = append([]directory{{Path: "std", Version: runtime.Version(), Dir: string(bytes.TrimSpace(root))}}, modules...)
	for _, m := range modules {
		if err := m.copyTo(to); err != nil {
			return err
		}
	}
	return nil
}

// directory is where the files of a module are, as `go list -m -json` says it.
type directory struct {
	Path, Version, Dir string
}

// directories returns those of some modules, by path.
func directories(paths map[string]bool) (all []directory, err error) {
	out, err := exec.Command("go", "list", "-m", "-json", "all").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m directory
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if paths[m.Path] {
			all = append(all, m)
			delete(paths, m.Path)
		}
	}
	for path := range paths {
		return nil, fmt.Errorf("%s is linked, but not in go.mod: build the programs again", path)
	}
	return all, nil
}

var isNotice = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)

// copyTo copies a module's licenses. There has to be one.
func (m directory) copyTo(to io.Writer) error {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.Type().IsRegular() || !isNotice.MatchString(e.Name()) })
	if len(entries) == 0 {
		return fmt.Errorf("%s: no license in %s", m.Path, m.Dir)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to, "==== %s %s: %s\n\n%s\n", m.Path, m.Version, e.Name(), text); err != nil {
			return err
		}
	}
	return nil
}
