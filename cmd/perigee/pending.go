package main

import (
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// What the commands about delayed messages and about transactions have in common.

// stamp prints a point in time; nothing for none.
func stamp(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return ""
	}
	return ts.AsTime().UTC().Format(time.RFC3339Nano)
}

// eachPage asks for page after page, with the token of each, until there is none left or
// one was enough.
func eachPage(ask func(token string) (next string, enough bool, err error)) error {
	for token := ""; ; {
		next, enough, err := ask(token)
		if err != nil || enough || next == "" {
			return err
		}
		token = next
	}
}

// changeView is what became of one pending message.
type changeView struct {
	ID    string `json:"id"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// printChanges prints what became of each message, and returns those that were not changed.
func printChanges[R interface {
	GetId() string
	GetError() string
}](a *app, done string, results []R) (failed []string, err error) {
	for _, r := range results {
		v := changeView{ID: r.GetId(), Done: r.GetError() == "", Error: r.GetError()}
		if !v.Done {
			failed = append(failed, v.ID)
		}
		err := a.print(v, func(w io.Writer) {
			if v.Done {
				fmt.Fprintf(w, "%s %s\n", done, v.ID)
			} else {
				fmt.Fprintf(w, "not %s %s: %s\n", done, v.ID, v.Error)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return failed, nil
}
