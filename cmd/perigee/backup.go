package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// backupLine is what backup and restore print with --json.
type backupLine struct {
	Target   string            `json:"target"`
	Tier     string            `json:"tier"`
	Shards   []backupShard     `json:"shards,omitempty"`
	Metadata *backedUpMetadata `json:"metadata,omitempty"`
	Files    int64             `json:"files"`
	Linked   *int64            `json:"linked_bytes,omitempty"`
	Copied   *int64            `json:"copied_bytes,omitempty"`
}

type backupShard struct {
	Name  string `json:"name"`
	First uint64 `json:"first_position"`
	End   uint64 `json:"end_position"`
}

type backedUpMetadata struct {
	Revision uint64 `json:"revision"`
	Topics   int64  `json:"topics"`
	Groups   int64  `json:"groups"`
}

func (l backupLine) write(w io.Writer) {
	for _, s := range l.Shards {
		fmt.Fprintf(w, "  shard %s: log from position %d to %d\n", s.Name, s.First, s.End)
	}
	if m := l.Metadata; m != nil {
		fmt.Fprintf(w, "  metadata: revision %d, %d topics, %d groups\n", m.Revision, m.Topics, m.Groups)
	} else {
		fmt.Fprintln(w, "  metadata: a router in another process has them")
	}
}

func (a *app) backupCommand() *cobra.Command {
	var dataDir, to, rate string
	cmd := &cobra.Command{
		Use: "backup", Short: "Copy what a running server has into a new folder", Args: arguments(),
		Long: "Copy what a running server has into a new folder: a server in one process, a store node or a\n" +
			"router. It is asked through a socket in its data folder, so that the command runs where the\n" +
			"server does, as a user who may write to that folder, and the server writes the backup.\n" +
			"All that was acknowledged before is in it. Clients are served meanwhile, and retention goes on.\n\n" +
			"On the file system of the data folder, files that do not change any more are linked: that takes\n" +
			"no time and no room until the server removes them. Elsewhere they are copied. The folder has its\n" +
			"name only when it is whole; until then it ends in \".unfinished\". \"perigee check\" verifies it,\n" +
			"\"perigee restore\" makes a data folder of it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usagef("--to names the folder of the backup, which must not exist")
			}
			target, err := filepath.Abs(to)
			if err != nil {
				return err
			}
			limit, err := config.ParseSize(rate)
			if err != nil {
				return usagef("rate %q: %v", rate, err)
			}
			return a.backup(cmd.Context(), dataDir, &adminpb.BackupRequest{Target: target, Rate: int64(limit)})
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", config.Default().DataDir, "`folder` of the running server")
	cmd.Flags().StringVar(&to, "to", "", "`folder` of the backup; it must not exist")
	cmd.Flags().StringVar(&rate, "rate", "0", "`size` of what is copied in a second at most, such as 50MiB; 0: as much as the disks take")
	return cmd
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func (a *app) backup(ctx context.Context, dataDir string, req *adminpb.BackupRequest) error {
	var dialed error // gRPC says less
	conn, err := grpc.NewClient("passthrough:///control", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := node.DialControl(ctx, dataDir)
			dialed = err
			return conn, err
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := adminpb.NewControlServiceClient(conn).Backup(ctx, req)
	switch {
	case errors.Is(dialed, fs.ErrNotExist) || errors.Is(dialed, syscall.ECONNREFUSED):
		return fmt.Errorf("no server that has data runs over %s: a folder that nobody uses can be copied as it is", dataDir)
	case dialed != nil:
		return fmt.Errorf("the server over %s cannot be asked: %w", dataDir, dialed)
	case err != nil:
		return &statusError{status.Convert(err)}
	}
	linked, copied := resp.GetLinkedBytes(), resp.GetCopiedBytes()
	line := backupLine{Target: resp.GetTarget(), Tier: resp.GetTier(), Files: resp.GetFiles(), Linked: &linked, Copied: &copied}
	for _, s := range resp.GetShards() {
		line.Shards = append(line.Shards, backupShard{s.GetName(), s.GetFirstPosition(), s.GetEndPosition()})
	}
	if m := resp.GetMetadata(); m != nil {
		line.Metadata = &backedUpMetadata{m.GetRevision(), m.GetTopics(), m.GetGroups()}
	}
	return a.print(line, func(w io.Writer) {
		fmt.Fprintf(w, "backup of a %s in %s: %d files, %.1f MiB linked, %.1f MiB copied\n", line.Tier, line.Target, line.Files, mib(linked), mib(copied))
		line.write(w)
	})
}

func (a *app) restoreCommand() *cobra.Command {
	var dataDir, from string
	var giveUp bool
	cmd := &cobra.Command{
		Use: "restore", Short: "Make a data folder of a backup", Args: arguments(),
		Long: "Make a data folder of a backup, after its files were compared with its manifest. The folder must\n" +
			"be empty or missing; the backup stays as it is. Start the server over the new folder then, with the\n" +
			"configuration that it had.\n\n" +
			"What came after the backup is not in it: sends since then are lost, what was acknowledged since then\n" +
			"is delivered again. Metadata get another life: store nodes and proxies that know newer ones refuse\n" +
			"them until their caches are removed. Where store nodes have topics or groups that are newer than the\n" +
			"backup of a router they refuse to start, unless --give-up-newer was set: their ids are never given\n" +
			"out again then, and the store nodes delete what they have of them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || dataDir == "" {
				return usagef("--from names the backup, and --data-dir the folder to put it in")
			}
			m, err := node.Restore(cmd.Context(), vfs.Default, from, dataDir, giveUp)
			if err != nil {
				return err
			}
			line := backupLine{Target: dataDir, Tier: m.Tier, Files: int64(len(m.Files))}
			for _, s := range m.Shards {
				line.Shards = append(line.Shards, backupShard(s))
			}
			if md := m.Metadata; md != nil {
				line.Metadata = &backedUpMetadata{md.Revision, int64(md.Topics), int64(md.Groups)}
			}
			return a.print(line, func(w io.Writer) {
				fmt.Fprintf(w, "%s is the data folder of a %s as it was at %s: %d files\n", dataDir, m.Tier, m.Began.Local().Format("2006-01-02 15:04:05"), len(m.Files))
				line.write(w)
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "`folder` of the backup")
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "`folder` to put it in; it must be empty, or not exist")
	cmd.Flags().BoolVar(&giveUp, "give-up-newer", false, "give up topics and groups that store nodes have and the metadata of the backup do not know")
	return cmd
}
