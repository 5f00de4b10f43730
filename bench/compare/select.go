package main

import "regexp"

// job is what is measured on one underlay.
type job struct {
	underlay   underlay
	candidates []candidate // with the rows that are measured
}

// selectJobs returns the rows whose <underlay>/<row> the expression only matches (nil matches all), and the
// reference on each underlay that has such a row.
func selectJobs(only *regexp.Regexp, list []candidate) (jobs []job) {
	for _, u := range underlays() {
		j := job{underlay: u}
		matches := 0
		for _, c := range list {
			var rows []row
			for _, r := range c.rows {
				match := only == nil || only.MatchString(u.name+"/"+r.name)
				if match {
					matches++
				}
				if match || r.name == reference {
					rows = append(rows, r)
				}
			}
			if c.rows = rows; len(rows) > 0 {
				j.candidates = append(j.candidates, c)
			}
		}
		if matches > 0 {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// slots is how many slots a round of a job has: one for each row, and those of the costs of which it has both rows.
func (j job) slots() (n int) {
	rows := map[string]bool{}
	for _, c := range j.candidates {
		for _, r := range c.rows {
			rows[r.name] = true
		}
	}
	n = len(rows)
	for _, c := range costs() {
		if rows[c.row] && rows[c.beside] {
			n += costSlots
		}
	}
	return n
}
