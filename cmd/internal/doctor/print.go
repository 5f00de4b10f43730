package doctor

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

// Findings are the answer of GET /v1/checks, and what `overlayd doctor -o json` prints.
type Findings struct {
	V      int      `json:"v"` // status.Version
	Checks []Result `json:"checks"`
}

// Print prints what the checks found, as json or as text: a line for each, and below a fault a line with the next step.
func Print(w io.Writer, found []Result, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(Findings{V: status.Version, Checks: found})
	}
	for _, r := range found {
		text := r.Text
		if r.Network != "" {
			text = "network " + r.Network + ": " + text
		}
		if _, err := fmt.Fprintf(w, "%-7s  %-16s  %s\n", r.State, r.ID, control.Printable(text, 2048)); err != nil {
			return err
		}
		if r.Fix != "" && (r.State == Fail || r.State == Warn) {
			if _, err := fmt.Fprintf(w, "%27snext: %s\n", "", control.Printable(r.Fix, 2048)); err != nil {
				return err
			}
		}
	}
	return nil
}
