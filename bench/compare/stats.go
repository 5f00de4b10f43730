package main

import "slices"

// summary is what several rounds say about one figure.
type summary struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // by round; those that failed are left out
	// Ratio is the median divided by that of the reference on the same underlay; 0 if that is not known.
	Ratio float64 `json:"ratio,omitempty"`
}

// summarise returns false for no values.
func summarise(values []float64) (summary, bool) {
	if len(values) == 0 {
		return summary{}, false
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return summary{
		Median: (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Min:    sorted[0],
		Max:    sorted[n-1],
		Values: values,
	}, true
}
