// Package table collects figures from several test runs in one file and prints them
// as one table: a run adds its cells, whoever started the runs prints what they add up to.
package table

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// A Cell is one figure.
type Cell struct {
	Column string `json:"column"`
	Row    string `json:"row"`
	Value  string `json:"value"`
}

// Env names the environment variable with the path of the file.
const Env = "PERIGEE_RESULTS"

// Add appends cells to the file that Env names; without it they are dropped.
func Add(cells ...Cell) error {
	path := os.Getenv(Env)
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	var lines []byte
	for _, c := range cells {
		line, err := json.Marshal(c)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		lines = append(append(lines, line...), '\n')
	}
	_, err = f.Write(lines) // one write: runs may overlap
	return errors.Join(err, f.Close())
}

// Print reads cells and prints them, columns and rows in the order given; what is not
// among those follows in the order in which it came. A cell that was added again has
// its last value.
func Print(w io.Writer, r io.Reader, columns, rows []string) error {
	values := map[[2]string]string{}
	lines := bufio.NewScanner(r)
	var haveColumns, haveRows []string
	for lines.Scan() {
		var c Cell
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		values[[2]string{c.Column, c.Row}] = c.Value
		haveColumns, haveRows = append(haveColumns, c.Column), append(haveRows, c.Row)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	columns, rows = present(columns, haveColumns), present(rows, haveRows)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\t\n", strings.Join(columns, "\t"))
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i, column := range columns {
			if cells[i] = values[[2]string{column, row}]; cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t\n", row, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// present returns what there is, in the wanted order.
func present(wanted, have []string) []string {
	var list []string
	for _, name := range append(slices.Clone(wanted), have...) {
		if slices.Contains(have, name) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
