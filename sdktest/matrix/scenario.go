package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Servers that a scenario can have.
const (
	commonServer   = ""          // shared with the other scenarios of a language
	oneShardServer = "one-shard" // shared with those about what one shard promises
	ownServer      = "own"       // for this scenario alone, which ends it
)

// A Scenario is something that every SDK is tested with. Its topic and its group are
// called as it is.
type Scenario struct {
	Name    string   `json:"name"`
	Meaning string   `json:"meaning"`
	Topic   []string `json:"topic"`  // flags of perigee topic create
	Group   []string `json:"group"`  // flags of perigee group create
	Groups  int      `json:"groups"` // 2: a second group has -2 at the end of its name
	Server  string   `json:"server"`
	// Filter are the flags of the filter that the group's consumers have.
	Filter []string `json:"filter"`
	// Unsettled says that messages are left at the end. Otherwise the groups must have
	// settled all there is.
	Unsettled bool `json:"unsettled"`
	// NotApplicable says why no language can run it.
	NotApplicable string `json:"not_applicable"`
}

func (s Scenario) groups() []string {
	if s.Groups == 2 {
		return []string{s.Name, s.Name + "-2"}
	}
	return []string{s.Name}
}

// A Language is an official SDK, or something that is built on one.
type Language struct {
	ID       string   `json:"id"`
	Folder   string   `json:"folder"` // of its project, if it is not called as the language
	Name     string   `json:"name"`
	SDK      string   `json:"sdk"`
	Version  string   `json:"version"`
	PinnedIn string   `json:"pinned_in"` // the file that names this version
	Needs    []string `json:"needs"`     // commands
	Build    string   `json:"build"`     // a line of shell
	// Run is a program that takes an endpoint and the names of scenarios, and speaks as
	// program.go says. In it and in Build, {cache} is a folder that outlasts the run,
	// {home} one that does not.
	Run []string `json:"run"`
	// Suite is the kind of a test suite whose tests are mapped to scenarios by CoveredBy.
	Suite     string              `json:"suite"`
	CoveredBy map[string][]string `json:"covered_by"`

	NotOffered map[string]string `json:"not_offered"` // by scenario: what the SDK does not have
	Faults     map[string]string `json:"faults"`      // by scenario: what the SDK does wrong, which its program shows
	// Only are the scenarios of what is built on an SDK. Empty: all.
	Only []string `json:"only"`
	// Missing says why the SDK cannot be run at all.
	Missing string `json:"missing"`
}

// A plan is what there is to run.
type plan struct {
	Scenarios    []Scenario
	Languages    []Language
	Integrations []Language
}

// readPlan reads scenarios.json and languages.json of a folder and checks that they fit.
func readPlan(folder string) (plan, error) {
	var p plan
	for _, file := range []string{"scenarios.json", "languages.json"} {
		content, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return plan{}, err
		}
		if err := json.Unmarshal(content, &p); err != nil {
			return plan{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	return p, p.check()
}

func (p plan) check() error {
	known := map[string]bool{}
	for _, s := range p.Scenarios {
		if known[s.Name] {
			return fmt.Errorf("scenario %s is there twice", s.Name)
		}
		known[s.Name] = true
	}
	for _, l := range slices.Concat(p.Languages, p.Integrations) {
		names := slices.Clone(l.Only)
		for _, table := range []map[string]string{l.NotOffered, l.Faults} {
			for name := range table {
				names = append(names, name)
			}
		}
		for name := range l.CoveredBy {
			names = append(names, name)
		}
		for _, name := range names {
			if !known[name] {
				return fmt.Errorf("%s: no scenario %s", l.Name, name)
			}
		}
		for _, s := range p.Scenarios {
			if l.Suite != "" && l.runs(s) && len(l.CoveredBy[s.Name]) == 0 {
				return fmt.Errorf("%s: no test for %s", l.Name, s.Name)
			}
		}
	}
	return nil
}

func (l Language) folder() string {
	if l.Folder != "" {
		return l.Folder
	}
	return l.ID
}

// runs reports whether the language has to run the scenario.
func (l Language) runs(s Scenario) bool {
	return s.NotApplicable == "" && l.NotOffered[s.Name] == "" && l.Missing == "" &&
		(len(l.Only) == 0 || slices.Contains(l.Only, s.Name))
}
