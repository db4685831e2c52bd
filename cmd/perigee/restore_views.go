package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/store"
)

// restoredLine is what restore-views prints with --json.
type restoredLine struct {
	Aside   string `json:"aside,omitempty"`
	Base    string `json:"base,omitempty"`
	Applied uint64 `json:"applied_record"`
	First   uint64 `json:"first_record"`
}

func (a *app) restoreViewsCommand() *cobra.Command {
	var dataDir, shard string
	cmd := &cobra.Command{
		Use: "restore-views", Short: "Put the base of a shard's views in their place", Args: arguments(),
		Long: "Put the views of a shard of a stopped server aside, and the base that was kept when its log\n" +
			"was last trimmed in their place. The next start applies to it what the log has since. This\n" +
			"is for views that are missing or damaged; a log that was never trimmed needs no base.\n" +
			"Nothing is deleted: the views can be moved back.",
		RunE: func(*cobra.Command, []string) error {
			r, err := store.RestoreViews(vfs.Default, filepath.Join(dataDir, node.StoreDir), shard)
			if err != nil {
				return err
			}
			line := restoredLine{Aside: r.Aside, Base: r.Base, Applied: r.Applied, First: r.First}
			return a.print(line, func(w io.Writer) {
				if r.Aside != "" {
					fmt.Fprintf(w, "views moved to %s\n", r.Aside)
				}
				if r.Base != "" {
					fmt.Fprintf(w, "base %s is in their place; it has all up to record %d\n", r.Base, r.Applied)
				} else {
					fmt.Fprintln(w, "no base is needed: the log still begins with its first record")
				}
				fmt.Fprintln(w, "the next start applies what the log has since")
			})
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", config.Default().DataDir, "`folder` of the stopped server")
	cmd.Flags().StringVar(&shard, "shard", "", "`name` of the shard; may be left out when there is only one")
	return cmd
}
