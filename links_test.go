package overlayd_test

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is where the files of this module are read on the web.
const repository = "https://github.com/overlayd/overlayd/blob/main/"

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	onWeb   = regexp.MustCompile(regexp.QuoteMeta(repository) + `[^\s")]+`)
	heading = regexp.MustCompile("(?m)^#+ (.*)$")
	code    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
)

// TestLinks: every link in a page leads to a file of this module and, if it names one, to a heading there. Pages of the web
// are not asked for, but for those of this repository. Pictures are XML that can be read.
func TestLinks(t *testing.T) {
	n := 0
	for _, file := range pagesAndRules(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, url := range onWeb.FindAllString(string(text), -1) {
			n++
			checkLink(t, file, strings.TrimPrefix(url, repository))
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			switch target := m[1]; {
			case strings.Contains(target, "://"):
			case strings.HasPrefix(target, "#"):
				n++
				checkLink(t, file, file+target)
			default:
				n++
				checkLink(t, file, filepath.Join(filepath.Dir(file), target))
			}
		}
	}
	if t.Logf("%d links", n); n < 100 {
		t.Errorf("%d links: the pages are not read", n)
	}
}

// pagesAndRules are the files that may have links.
func pagesAndRules(t *testing.T) (files []string) {
	t.Helper()
	for _, top := range []string{"README.md", "SECURITY.md", "CHANGELOG.md", "bench/README.md", "docs", "deploy"} {
		if err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func checkLink(t *testing.T, from, target string) {
	t.Helper()
	path, anchor, _ := strings.Cut(target, "#")
	text, err := os.ReadFile(path)
	switch {
	case strings.HasPrefix(path, "docs/cli/"): // make docs writes them
	case err != nil:
		t.Errorf("%s: dead link to %s", from, target)
	case anchor != "" && !hasHeading(string(text), anchor):
		t.Errorf("%s: %s has no heading #%s", from, path, anchor)
	case filepath.Ext(path) == ".svg":
		checkXML(t, path, string(text))
	}
}

// hasHeading reports whether a page has a heading with an anchor, as GitHub makes them.
func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(plain, " ", "-") == anchor {
			return true
		}
	}
	return false
}

func checkXML(t *testing.T, path, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
	}
}
