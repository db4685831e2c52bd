package shard

import (
	"time"

	"github.com/perigee-mq/perigee/internal/histogram"
)

// A Stage is a part of the way of commands through the loop.
type Stage uint8

// The stages, in their order.
const (
	StageQueue  Stage = iota // a request waits for its round to begin
	StageAppend              // a round is checked, encoded and written to the log
	StageFsync               // the log is synced
	StageApply               // a round is applied and committed to the views
	StageAnswer              // those who wait are woken and the requests answered
	Stages                   // how many there are
)

// String returns the name of the stage.
func (s Stage) String() string {
	return [...]string{"queue", "append", "fsync", "apply", "answer"}[s]
}

// stages measures the time in each stage: once for each request in the queue, and
// once for each round in the others. Where one stage ends the next begins, so that
// each costs one reading of the clock.
type stages struct {
	spent [Stages]histogram.Histogram
	since int64 // when the stage under way began; the loop's alone
}

// begin begins a round, and counts how long its requests have waited until now.
func (st *stages) begin(now int64, requests []*request) {
	st.since = now
	for _, r := range requests {
		if r.query == nil {
			st.spent[StageQueue].Observe(time.Duration(now - r.submitted))
		}
	}
}

// end counts a stage of the round, which ends now.
func (st *stages) end(stage Stage, now int64) {
	st.spent[stage].Observe(time.Duration(now - st.since))
	st.since = now
}
