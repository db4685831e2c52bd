package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// importedLine is what router import prints with --json.
type importedLine struct {
	Entries int    `json:"entries"`
	Aside   string `json:"aside"`
}

func (a *app) importCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "import", Short: "Carry the metadata of a stopped router into etcd", Args: arguments(),
		Long: "Carry the metadata in the data folder of a stopped router into an etcd, so that several routers\n" +
			"share them from then on. An etcd that has metadata below the prefix is refused. What was carried\n" +
			"over stays in the data folder under another name, and the routers start with --etcd. Stores and\n" +
			"proxies go on meanwhile with what they know. It may be repeated when it did not come to its end.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Sources{Tier: config.Router, File: file, Env: a.env, Flags: cmd.Flags()})
			if err != nil {
				return &usageError{err}
			}
			if len(cfg.Etcd.Endpoints) == 0 {
				return usagef("--etcd names the etcd")
			}
			done, err := node.ImportIntoEtcd(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return a.print(importedLine(done), func(w io.Writer) {
				fmt.Fprintf(w, "%d entries are in etcd now, below %s; those of the data folder were moved to %s\n", done.Entries, cfg.Etcd.Prefix, done.Aside)
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", a.getenv("PERIGEE_CONFIG", ""), "configuration `file` (environment: PERIGEE_CONFIG)")
	config.AddFlags(cmd.Flags(), config.Router)
	return cmd
}
