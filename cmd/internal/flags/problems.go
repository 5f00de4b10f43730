package flags

import "fmt"

// Warning is a flag or a variable that has another effect than its value says. flanneld accepts
// it: so does a daemon that is started in its place.
type Warning struct {
	Text string // names the flag or the variable, and the value
	Fix  string // what to give instead
}

// problems collects what is wrong with flags.
type problems struct {
	errs     []error // any of them refuses the flags
	warnings []Warning
}

// bad notes what is wrong with the value of a flag.
func (p *problems) bad(flag string, value any, want string) {
	p.add(fmt.Errorf("--%s: %q: %s", flag, fmt.Sprint(value), want))
}

func (p *problems) add(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *problems) warn(text, fix string) { p.warnings = append(p.warnings, Warning{text, fix}) }
