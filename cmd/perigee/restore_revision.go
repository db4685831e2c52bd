package main

import (
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// revisionLine is what restore-revision prints with --json.
type revisionLine struct {
	Revision uint64 `json:"revision"`
	Topics   int    `json:"topics"`
	Groups   int    `json:"groups"`
	Aside    string `json:"aside,omitempty"`
}

func (a *app) restoreRevisionCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use: "restore-revision", Short: "Write the file REVISION of the metadata anew", Args: arguments(),
		Long: "Write the file REVISION of the metadata of a stopped server anew when it is missing or\n" +
			"damaged, and all else of the metadata is sound. It remembers the newest change of a topic or\n" +
			"group, so that a database that has lost its end is refused. Without it nobody can tell: run\n" +
			"this only when you know that the metadata is the newest, such as after the file was deleted\n" +
			"by mistake, and look then whether all topics and groups are there.\n" +
			"Nothing is deleted: a damaged file is put aside.",
		RunE: func(*cobra.Command, []string) error {
			r, err := node.RestoreRevision(vfs.Default, dataDir)
			if err != nil {
				return err
			}
			return a.print(revisionLine{Revision: r.Revision, Topics: r.Topics, Groups: r.Groups, Aside: r.Aside}, func(w io.Writer) {
				if r.Aside != "" {
					fmt.Fprintf(w, "damaged file moved to %s\n", r.Aside)
				}
				fmt.Fprintf(w, "REVISION says that revision %d is the newest, with %d topics and %d groups\n", r.Revision, r.Topics, r.Groups)
			})
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", config.Default().DataDir, "`folder` of the stopped server")
	return cmd
}
