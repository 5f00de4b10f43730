package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds how much of a file is read, in bytes: more than a config may have.
const maxFile = 1 << 20

// Read reads a file, or standard input if its name is -.
func Read(name string, stdin io.Reader) ([]byte, error) {
	from, what := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from, what = f, name
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes, which is more than a network config may have", what, maxFile)
	}
	return text, err
}

// PrintProblems prints mistakes as JSON.
func PrintProblems(w io.Writer, problems []Problem) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(map[string][]Problem{"errors": problems})
}

// Join makes an error of mistakes in a file, with a line for each.
func Join(file string, problems []Problem) error {
	var errs []error
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s", file, p.Line, p.Column, p.Message))
	}
	return errors.Join(errs...)
}
