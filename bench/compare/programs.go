package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// program is one candidate in the report.
type program struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Note    string `json:"note"`
	Missing string `json:"missing,omitempty"` // why there are no figures
}

// findPrograms notes the versions of all candidates of the jobs, and takes those
// out of the jobs that lack a program.
func (r *run) findPrograms(ctx context.Context, jobs []job) {
	for i := range jobs {
		jobs[i].candidates = slices.DeleteFunc(jobs[i].candidates, func(c candidate) bool {
			p := r.program(c.name)
			if p == nil {
				p = newProgram(ctx, c)
				r.programs = append(r.programs, p)
				r.say("%s", p.text())
			}
			return p.Missing != ""
		})
	}
}

// program returns a candidate's entry, or nil.
func (r *run) program(name string) *program {
	i := slices.IndexFunc(r.programs, func(p *program) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return r.programs[i]
}

func newProgram(ctx context.Context, c candidate) *program {
	p := &program{Name: c.name, Note: c.note, Version: c.versionText}
	if p.Missing = lacks(c.needs...); p.Missing != "" {
		return p
	}
	if c.version != nil {
		// Some exit with 1 after printing it.
		out, _ := exec.CommandContext(ctx, c.version[0], c.version[1:]...).CombinedOutput()
		p.Version = firstVersion(string(out)) + moduleVersion(c.version[0])
	}
	return p
}

// lacks names the first of some programs (on PATH, or paths) that is not on this machine; it returns "" if all are.
func lacks(programs ...string) string {
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Sprintf("no %s on this machine", name)
		}
	}
	return ""
}

// moduleVersion returns the module version of a Go program that was built from a release, in brackets: what it says of itself may
// be older.
func moduleVersion(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return ""
	}
	return " (" + info.Main.Path + " " + info.Main.Version + ")"
}

func (p *program) text() string {
	if p.Missing != "" {
		return p.Name + ": missing: " + p.Missing
	}
	return p.Name + ": " + p.Version + "; " + p.Note
}

// firstVersion returns the first line with a digit in it, without the list of
// features in brackets that openvpn adds.
func firstVersion(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.ContainsAny(line, "0123456789") {
			line, _, _ = strings.Cut(line, " [")
			return line
		}
	}
	return "unknown version"
}
