package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mutation breaks one rule of the product in one place.
type mutation struct {
	name string
	kind kind
	rule string // what no longer holds, in words
	file string // from the root of the repository
	// old stands exactly once in the file, and is replaced by new.
	old, new string
	// by are the checkers that are asked, in order, until one finds it; none: those of
	// the simulated histories, then all others that run in one process.
	by []string
	// short: it is one of the few that are planted on every change.
	short bool
}

// A kind is a part of what must always hold.
type kind string

const (
	durability   kind = "durability"
	leases       kind = "leases"
	groups       kind = "message groups"
	halves       kind = "transactions"
	delays       kind = "delays"
	repeats      kind = "repeated sends"
	deadLetters  kind = "dead letters"
	retention    kind = "retention"
	offsets      kind = "offsets"
	liteTopics   kind = "lite topics"
	purges       kind = "purge"
	filters      kind = "filters"
	priorities   kind = "priorities"
	wakeUps      kind = "wake-ups"
	clocks       kind = "clock"
	wholeServers kind = "whole server"
)

var kinds = []kind{
	durability, leases, groups, halves, delays, repeats, deadLetters, retention, offsets, liteTopics, purges, filters, priorities, wakeUps, clocks, wholeServers,
}

// all returns every mutation, by kinds.
func all() []mutation {
	return slices.Concat(ofTheLog(), ofLeases(), ofMessageGroups(), ofPending(), ofRepeats(), ofDeadLetters(), ofRetention(), ofPlaces(), ofLites(), ofChoices(), ofWakeUps(), ofClocks(), ofServers())
}

// apply returns the text of the file with the rule broken.
func (m *mutation) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s: the text to replace stands %d times in %s, not once:\n%s", m.name, n, m.file, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}
