package overlayd_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// anything stands for a part of a message that is known at run time only.
const anything = "…"

// TestEveryMessageIsDocumented: docs/messages.md has a row for each line that the daemon logs as a warning or error, and no
// other row. A row has the message as the log has it, with … for what changes.
func TestEveryMessageIsDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		if documented[row[1]] {
			t.Errorf("docs/messages.md has two rows for %q", row[1])
		}
		documented[row[1]] = true
	}
	logged := messages(t)
	for _, m := range slices.Sorted(maps.Keys(logged)) {
		if !documented[m] {
			t.Errorf("docs/messages.md has no row for %q of %s", m, logged[m])
		}
	}
	for m := range documented {
		if logged[m] == "" {
			t.Errorf("docs/messages.md has a row for %q, which nothing logs", m)
		}
	}
}

// byID logs warnings that have an id: docs/troubleshooting.md has those.
const byID = "dataplane/warnings.go"

// ofFlags log what is wrong with a flag, by its name: docs/from-flannel.md has those.
var ofFlags = []string{"cmd/overlayd/daemon.go", "cmd/overlayd/reload.go"}

// messages returns what the daemon can log as a warning or error, and where, from its source.
func messages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range sources(t) {
		for _, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				for _, m := range p.logged(n) {
					at := p.fset.Position(n.Pos())
					switch {
					case m == "": // that it is never said
					case at.Filename == byID:
					case m == anything && slices.Contains(ofFlags, at.Filename):
					case m == anything:
						t.Errorf("%s: cannot tell what is logged", at)
					default:
						all[m] = fmt.Sprintf("%s:%d", at.Filename, at.Line)
					}
				}
				return true
			})
		}
	}
	return all
}

// source is a package as it is written.
type source struct {
	fset  *token.FileSet
	files []*ast.File
	all   map[string]*source
}

// sources returns the packages of the product by their directories.
func sources(t *testing.T) map[string]*source {
	t.Helper()
	all := map[string]*source{}
	for _, top := range layers {
		if err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			dir := filepath.Dir(path)
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "test.go") || strings.HasSuffix(dir, "test") {
				return err
			}
			if all[dir] == nil {
				all[dir] = &source{fset: token.NewFileSet(), all: all}
			}
			f, err := parser.ParseFile(all[dir].fset, path, nil, parser.SkipObjectResolution)
			all[dir].files = append(all[dir].files, f)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

var (
	verbs  = regexp.MustCompile(`%[-+#0-9.]*[a-z]`)
	logger = regexp.MustCompile(`(?i)(^|\.)log$|Logger\(\)$`)
)

// logged returns the messages of a call that logs a warning or error, or of a list that has a level and then a message.
func (p *source) logged(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.ReturnStmt:
		return p.leveled(n.Results)
	case *ast.CompositeLit:
		return p.leveled(n.Elts)
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return nil
		}
		switch {
		case name(n.Fun) == "slog.NewRecord":
			return p.leveled(n.Args)
		case (sel.Sel.Name == "Log" || sel.Sel.Name == "LogAttrs") && len(n.Args) > 2 && logger.MatchString(name(sel.X)):
			return p.chosen(n.Args[1], n.Args[2])
		}
		at, known := map[string]int{"Warn": 0, "Error": 0, "WarnContext": 1, "ErrorContext": 1}[sel.Sel.Name]
		if known && len(n.Args) > at && strings.HasSuffix(name(n.Args[at]), ".Text") {
			return []string{anything} // a warning that was made elsewhere
		}
		if known && len(n.Args) > at && logger.MatchString(name(sel.X)) {
			return p.values(n.Args[at], 0)
		}
	}
	return nil
}

// chosen returns the messages of a call with a level that may be a warning's or error's at run time. If the level is a field, it stands
// beside the message where that is made: see leveled.
func (p *source) chosen(level, message ast.Expr) []string {
	_, field := level.(*ast.SelectorExpr)
	never := func(l string) bool { return l == "slog.LevelDebug" || l == "slog.LevelInfo" }
	if levels := slices.DeleteFunc(p.values(level, 0), never); len(levels) == 0 || field && levels[0] == anything {
		return nil
	}
	return p.values(message, 0)
}

func (p *source) leveled(list []ast.Expr) []string {
	for i, e := range list {
		if level := name(e); i+1 < len(list) && (level == "slog.LevelWarn" || level == "slog.LevelError") && !strings.HasPrefix(name(list[i+1]), "slog.") {
			return p.values(list[i+1], 0)
		}
	}
	return nil
}

// name writes an expression such as s.cfg.Log, and p.Logger() for a call.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return name(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return name(e.Fun) + "()"
	}
	return ""
}

// values returns what an expression can be, as far as the package tells: constants, what a variable is set to, what a
// parameter is called with, and formats.
func (p *source) values(e ast.Expr, depth int) []string {
	if depth > 6 {
		return []string{anything}
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return []string{text}
		}
	case *ast.ParenExpr:
		return p.values(e.X, depth)
	case *ast.BinaryExpr:
		var all []string
		for _, left := range p.values(e.X, depth+1) {
			for _, right := range p.values(e.Y, depth+1) {
				all = append(all, left+right)
			}
		}
		return all
	case *ast.CallExpr:
		if name(e.Fun) == "fmt.Sprintf" {
			all := p.values(e.Args[0], depth+1)
			for i := range all {
				all[i] = verbs.ReplaceAllString(all[i], anything)
			}
			return all
		}
		return p.returned(name(e.Fun), depth+1)
	case *ast.SelectorExpr:
		if strings.HasPrefix(name(e), "slog.Level") {
			return []string{name(e)}
		}
		return p.given(e.Sel.Name, depth+1)
	case *ast.Ident:
		return p.assigned(e, depth+1)
	}
	return []string{anything}
}

// given returns what is put into the fields of a name, in this package or else in any.
func (p *source) given(field string, depth int) []string {
	all := p.givenHere(field, depth)
	if len(all) == 0 && depth == 1 { // it is the whole message
		for _, other := range p.all {
			all = append(all, other.givenHere(field, depth)...)
		}
	}
	return orAnything(all)
}

func (p *source) givenHere(field string, depth int) (all []string) {
	p.each(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if name(n.Key) == field {
				all = append(all, p.values(n.Value, depth)...)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok && sel.Sel.Name == field && len(n.Rhs) == len(n.Lhs) {
					all = append(all, p.values(n.Rhs[i], depth)...)
				}
			}
		}
	})
	return all
}

// returned returns what a function of the package returns first.
func (p *source) returned(function string, depth int) (all []string) {
	_, method, _ := strings.Cut(function, ".")
	p.each(func(n ast.Node) {
		f, ok := n.(*ast.FuncDecl)
		if !ok || f.Name.Name != function && f.Name.Name != method {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) > 0 {
				all = append(all, p.values(r.Results[0], depth)...)
			}
			return true
		})
	})
	return orAnything(all)
}

// assigned returns what a constant, variable or parameter is.
func (p *source) assigned(v *ast.Ident, depth int) (all []string) {
	set := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if name(left) == v.Name && len(n.Rhs) == len(n.Lhs) && n.Tok != token.ADD_ASSIGN {
					all = append(all, p.values(n.Rhs[i], depth)...)
				}
			}
		case *ast.ValueSpec:
			for i, left := range n.Names {
				if left.Name == v.Name && i < len(n.Values) {
					all = append(all, p.values(n.Values[i], depth)...)
				}
			}
		}
		return true
	}
	around := p.around(v)
	if around != nil {
		if at := parameter(around.Type, v.Name); at >= 0 {
			return p.called(around.Name.Name, at, depth)
		}
		ast.Inspect(around, set)
	}
	if len(all) == 0 {
		p.each(func(n ast.Node) {
			if d, ok := n.(*ast.GenDecl); ok {
				for _, spec := range d.Specs {
					set(spec)
				}
			}
		})
	}
	return orAnything(all)
}

// called returns what the package calls a function with.
func (p *source) called(function string, at, depth int) (all []string) {
	p.each(func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > at {
			if f := name(call.Fun); f == function || strings.HasSuffix(f, "."+function) {
				all = append(all, p.values(call.Args[at], depth)...)
			}
		}
	})
	return orAnything(all)
}

func (p *source) each(see func(ast.Node)) {
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool { see(n); return true })
	}
}

// around returns the function in which a node is.
func (p *source) around(n ast.Node) *ast.FuncDecl {
	for _, f := range p.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Pos() <= n.Pos() && n.Pos() < fn.End() {
				return fn
			}
		}
	}
	return nil
}

// parameter returns the place of a parameter in a function's list, or -1.
func parameter(f *ast.FuncType, called string) int {
	at := 0
	for _, field := range f.Params.List {
		for _, n := range field.Names {
			if n.Name == called {
				return at
			}
			at++
		}
	}
	return -1
}

func orAnything(all []string) []string {
	if len(all) == 0 {
		return []string{anything}
	}
	return all
}
