package main

import (
	"bufio"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// defaultDeriveLimit is how large views may be for a check to derive them in memory.
const defaultDeriveLimit = "1GiB"

func (a *app) checkCommand() *cobra.Command {
	var dataDir, deriveLimit string
	cmd := &cobra.Command{
		Use: "check", Short: "Verify everything that a stopped server, or a backup, holds", Args: arguments(),
		Long: "Verify everything that a stopped server holds: every record of the log, every block, key and\n" +
			"value of the views, that they agree with each other and with the log, and the metadata; of a\n" +
			"backup also its manifest. A line says what the folder is.\n" +
			"Nothing is changed. Each finding is one line with its file and offset, or its key; the exit\n" +
			"code is 1 if there is one. The check goes on behind what it finds. Ten findings of a kind are\n" +
			"shown, and then how many more there are. The last lines say what to do.\n\n" +
			"The views are also derived again from the log, in memory, and compared key by key, unless\n" +
			"they are larger than --derive-limit. That takes some times their size in memory.",
		RunE: func(*cobra.Command, []string) error {
			limit, err := config.ParseSize(deriveLimit)
			if err != nil {
				return usagef("--derive-limit %q %w", deriveLimit, err)
			}
			return a.check(dataDir, uint64(limit))
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", config.Default().DataDir, "`folder` of the stopped server")
	cmd.Flags().StringVar(&deriveLimit, "derive-limit", defaultDeriveLimit, "`size` of the largest views to derive again; 0 for none")
	return cmd
}

// Lines that check prints with --json.
type (
	findingLine struct {
		Finding findingInfo `json:"finding"`
	}
	findingInfo struct {
		Shard   string `json:"shard,omitempty"`
		File    string `json:"file"`
		Offset  *int64 `json:"offset,omitempty"`
		Key     string `json:"key,omitempty"`
		Problem string `json:"problem"`
	}
	shardLine struct {
		Shard shardInfo `json:"shard"`
	}
	shardInfo struct {
		Name       string `json:"name"`
		Segments   int    `json:"segments"`
		Records    uint64 `json:"records"`
		First      uint64 `json:"first_record"`
		Last       uint64 `json:"last_record"`
		End        uint64 `json:"end_position"`
		Torn       int64  `json:"torn_bytes"`
		Messages   uint64 `json:"messages"`
		Keys       uint64 `json:"keys"`
		Applied    uint64 `json:"applied_record"`
		AppliedTo  uint64 `json:"applied_position"`
		Derived    bool   `json:"derived"`
		NotDerived string `json:"not_derived,omitempty"`
		Findings   uint64 `json:"findings"`
		Advice     string `json:"advice,omitempty"`
	}
	metadataLine struct {
		Metadata metadataInfo `json:"metadata"`
	}
	metadataInfo struct {
		Revision uint64 `json:"revision"`
		Topics   int    `json:"topics"`
		Groups   int    `json:"groups"`
		Findings int    `json:"findings"`
		Advice   string `json:"advice,omitempty"`
		// Elsewhere: a router in another process has them.
		Elsewhere bool `json:"elsewhere,omitempty"`
	}
)

// folderInfo says what a folder is.
type folderInfo struct {
	Of      node.Folder `json:"of"`
	Backup  bool        `json:"backup,omitempty"`
	Began   *time.Time  `json:"began,omitempty"`
	Program string      `json:"program,omitempty"`
}

type folderLine struct {
	Folder folderInfo `json:"folder"`
}

func folderOf(sum node.Checked) folderInfo {
	info := folderInfo{Of: sum.Folder}
	if b := sum.Backup; b != nil {
		info.Backup, info.Program = true, b.Program
		if !b.Began.IsZero() {
			info.Began = &b.Began
		}
	}
	return info
}

func (f folderInfo) text() string {
	switch {
	case !f.Backup:
		return fmt.Sprintf("data folder of a %s", f.Of)
	case f.Began == nil:
		return fmt.Sprintf("backup of a %s", f.Of)
	}
	return fmt.Sprintf("backup of a %s, made at %s by version %s", f.Of, f.Began.Local().Format(time.DateTime), f.Program)
}

func (a *app) check(dataDir string, deriveLimit uint64) error {
	out := bufio.NewWriter(a.stdout)
	var printErr error
	line := func(value any, text string) {
		if printErr != nil {
			return
		}
		if a.json {
			printErr = printJSON(out, value)
		} else {
			_, printErr = fmt.Fprintln(out, text)
		}
	}
	sum, err := node.Check(vfs.Default, dataDir, node.CheckOptions{
		DeriveLimit: deriveLimit,
		Found:       func(f node.Finding) { line(findingLine{findingOf(f)}, f.String()) },
	})
	if err != nil {
		return err
	}
	about := folderOf(sum)
	if !a.json {
		line(nil, about.text())
	}
	var advice []string
	for _, s := range sum.Shards {
		info := shardOf(s)
		if info.Advice = a.shardAdvice(dataDir, s); info.Advice != "" {
			advice = append(advice, "shard "+s.Shard+": "+info.Advice)
		}
		line(shardLine{info}, describeShard(s))
	}
	m := sum.Metadata
	info := metadataOf(m)
	if m.Findings > 0 {
		info.Advice = metadataAdvice
		advice = append(advice, "metadata: "+info.Advice)
	}
	info.Elsewhere = sum.MetadataElsewhere
	text := fmt.Sprintf("metadata: revision %d, %d topics, %d groups", m.Revision, len(m.Topics), len(m.Groups))
	if sum.MetadataElsewhere {
		text = "metadata: a router in another process has them"
	}
	if k := sum.Known; k != nil {
		info.Revision, info.Topics, info.Groups = k.Revision, k.Topics, k.Groups
		text += fmt.Sprintf("; known are revision %d, %d topics, %d groups, %d nodes", k.Revision, k.Topics, k.Groups, k.Nodes)
	}
	line(metadataLine{info}, text)
	if a.json {
		line(folderLine{about}, "") // shards come first, as ever
	}
	for _, text := range advice {
		if !a.json {
			line(nil, text)
		}
	}
	if err := out.Flush(); printErr == nil {
		printErr = err
	}
	if printErr != nil {
		return printErr
	}
	if sum.Findings > 0 {
		noun := "findings"
		if sum.Findings == 1 {
			noun = "finding"
		}
		return fmt.Errorf("%s: %d %s", dataDir, sum.Findings, noun)
	}
	return nil
}

// metadataAdvice is what to do about damaged metadata.
const metadataAdvice = "bring back the data directory from a backup, or router alone when it is as new as the last change of a topic or group; " +
	"deleting it does not help: it cannot be derived from the messages. For a lost REVISION see perigee restore-revision"

// shardAdvice says what to do about the findings of a shard, in order of severity.
func (a *app) shardAdvice(dataDir string, s store.CheckedShard) string {
	switch {
	case s.LogDamaged:
		return "the log is damaged: bring back the data directory from a backup, or the file from a copy of the disk; restore-views does not help"
	case s.Restorable:
		return fmt.Sprintf("the views can be repaired, nothing is lost: %s restore-views --data-dir %s --shard %s", a.program, dataDir, s.Shard)
	}
	return ""
}

func findingOf(f node.Finding) findingInfo {
	info := findingInfo{Shard: f.Shard, File: f.File, Key: f.Key, Problem: f.Problem}
	if f.Offset >= 0 {
		info.Offset = &f.Offset
	}
	return info
}

func shardOf(s store.CheckedShard) shardInfo {
	return shardInfo{
		Name: s.Shard, Segments: s.Log.Segments, Records: s.Log.Records, First: s.Log.First, Last: s.Log.Last, End: uint64(s.Log.End),
		Torn: s.Log.Torn, Messages: s.Messages, Keys: s.Keys, Applied: s.Applied, AppliedTo: uint64(s.AppliedTo), Derived: s.Derived, NotDerived: s.NotDerived, Findings: s.Findings,
	}
}

func metadataOf(m router.Checked) metadataInfo {
	return metadataInfo{Revision: m.Revision, Topics: len(m.Topics), Groups: len(m.Groups), Findings: m.Findings}
}

func describeShard(s store.CheckedShard) string {
	text := fmt.Sprintf("shard %s: log of %d segments with records %d to %d and %d messages; views of %d keys at record %d",
		s.Shard, s.Log.Segments, s.Log.First, s.Log.Last, s.Messages, s.Keys, s.Applied)
	if s.Derived {
		text += ", compared with what the log gives"
	} else {
		text += ", not derived again: " + s.NotDerived
	}
	if s.Log.Torn > 0 {
		text += fmt.Sprintf("; a torn tail of %d bytes that the next start cuts", s.Log.Torn)
	}
	return text
}
