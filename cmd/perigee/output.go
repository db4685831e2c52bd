package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// print prints value as a line of JSON with --json, and else what text prints.
func (a *app) print(value any, text func(w io.Writer)) error {
	if a.json {
		return printJSON(a.stdout, value)
	}
	var b strings.Builder
	text(&b)
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// printAll prints each value as a line of JSON with --json, and else a table.
func printAll[T any](a *app, values []T, header string, row func(T) []any) error {
	if a.json {
		for _, v := range values {
			if err := printJSON(a.stdout, v); err != nil {
				return err
			}
		}
		return nil
	}
	return a.print(nil, func(w io.Writer) { table(w, header, values, row) })
}

// table prints values in columns; header names them, separated by blanks.
func table[T any](w io.Writer, header string, values []T, row func(T) []any) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, strings.Join(strings.Fields(header), "\t"))
	for _, v := range values {
		cells := row(v)
		fmt.Fprintf(columns, strings.Repeat("%v\t", len(cells)-1)+"%v\n", cells...)
	}
	_ = columns.Flush() // into memory
}
