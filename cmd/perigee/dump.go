package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/store"
)

func (a *app) dumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dump", Short: "Show what a stopped store holds", Args: noSubcommand, RunE: showHelp,
		Long: "Show what a stopped store holds. Nothing is changed. Damage ends the command with an\n" +
			"error that names file and offset.",
	}
	cmd.AddCommand(
		a.dumpPart("log", "Show and verify every record of the log", store.DumpLog),
		a.dumpPart("keys", "Show every key of the views", store.DumpKeys),
	)
	return cmd
}

func (a *app) dumpPart(name, short string, dump func(vfs.FS, string, func(store.Line) error) error) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: name, Short: short, Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			out := bufio.NewWriterSize(a.stdout, 64<<10)
			err := dump(vfs.Default, filepath.Join(dataDir, node.StoreDir), func(line store.Line) error {
				return a.printLine(out, line)
			})
			if flushErr := out.Flush(); err == nil {
				err = flushErr
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", config.Default().DataDir, "`folder` of the stopped server")
	return cmd
}

func (a *app) printLine(w io.Writer, line store.Line) error {
	if a.json {
		object := map[string]any{"shard": line.Shard, "what": line.What}
		for _, attr := range line.Attrs {
			object[attr.Key] = jsonValue(attr.Value)
		}
		return printJSON(w, object)
	}
	if _, err := fmt.Fprintf(w, "%s %s", line.Shard, line.What); err != nil {
		return err
	}
	for _, attr := range line.Attrs {
		if _, err := fmt.Fprintf(w, " %s", attr); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// jsonValue returns durations as text; the rest is JSON's own.
func jsonValue(v slog.Value) any {
	if v.Kind() == slog.KindDuration {
		return v.Duration().String()
	}
	return v.Any()
}
