package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
)

func (a *app) transactionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "transaction", Short: "List, commit and roll back half messages", Args: noSubcommand, RunE: showHelp,
		Long: "List half messages, whose transactions their producers have not ended, and end them.",
	}
	cmd.AddCommand(
		a.transactionList(),
		a.transactionEnd("commit", "Deliver half messages", "committed", adminpb.TransactionEnd_TRANSACTION_END_COMMIT),
		a.transactionEnd("rollback", "Drop half messages", "rolled back", adminpb.TransactionEnd_TRANSACTION_END_ROLLBACK),
		a.transactionEnd("check", "Ask the producers of half messages again, as often as at first", "to be asked about", adminpb.TransactionEnd_TRANSACTION_END_CHECK),
	)
	return a.addEndpoint(cmd)
}

// withTransactions runs do with a client of the service of transactions.
func (a *app) withTransactions(cmd *cobra.Command, do func(context.Context, adminpb.TransactionServiceClient) error) error {
	return a.withConn(func(conn *client.Conn) error {
		return do(cmd.Context(), adminpb.NewTransactionServiceClient(conn))
	})
}

// transactionView is how a half message is printed.
type transactionView struct {
	ID        string   `json:"id"`
	MessageID string   `json:"message_id"`
	Topic     string   `json:"topic"`
	Stage     string   `json:"stage"`
	Checks    int32    `json:"checks"`
	NextCheck string   `json:"next_check_at,omitempty"`
	StoredAt  string   `json:"stored_at"`
	BornHost  string   `json:"born_host,omitempty"`
	Tag       string   `json:"tag,omitempty"`
	Keys      []string `json:"keys,omitempty"`
	Shard     string   `json:"shard"`
	Queue     int32    `json:"queue"`
	Size      int64    `json:"size"`
}

var stageNames = map[adminpb.TransactionStage]string{
	adminpb.TransactionStage_TRANSACTION_STAGE_WAITING:    "waiting",
	adminpb.TransactionStage_TRANSACTION_STAGE_LAST_ASKED: "last-asked",
	adminpb.TransactionStage_TRANSACTION_STAGE_GIVEN_UP:   "given-up",
}

func viewTransaction(t *adminpb.Transaction) transactionView {
	return transactionView{
		ID: t.GetId(), MessageID: t.GetMessageId(), Topic: t.GetTopic(), Stage: stageNames[t.GetStage()], Checks: t.GetChecks(),
		NextCheck: stamp(t.GetNextCheckAt()), StoredAt: stamp(t.GetStoredAt()), BornHost: t.GetBornHost(),
		Tag: t.GetTag(), Keys: t.GetKeys(), Shard: t.GetShard(), Queue: t.GetQueue(), Size: t.GetSize(),
	}
}

func (a *app) transactionList() *cobra.Command {
	var most int
	var topic, messageID, stage string
	cmd := &cobra.Command{
		Use: "list", Short: "List half messages whose transactions have not ended", Args: arguments(),
		Long: "List half messages whose transactions have not ended: waiting ones, whose producer is asked\n" +
			"later or again; last-asked ones, whose producer may still answer the last question; and\n" +
			"given-up ones, which wait for somebody to commit them or roll them back.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 0 {
				return usagef("max %d: must not be negative", most)
			}
			req := &adminpb.ListTransactionsRequest{Namespace: a.endpoint.namespace, Topic: topic, MessageId: messageID}
			for s, name := range stageNames {
				if name == stage {
					req.Stage = s
				}
			}
			if stage != "" && req.Stage == 0 {
				return usagef("stage %q: must be waiting, last-asked or given-up", stage)
			}
			return a.withTransactions(cmd, func(ctx context.Context, transactions adminpb.TransactionServiceClient) error {
				views, missing := []transactionView{}, []string(nil)
				err := eachPage(func(token string) (next string, enough bool, err error) {
					req.PageToken = token
					resp, err := call(ctx, method(transactions.ListTransactions), req)
					for _, t := range resp.GetTransactions() {
						if most == 0 || len(views) < most {
							views = append(views, viewTransaction(t))
						}
					}
					missing = both(missing, resp.GetUnreachableShards())
					return resp.GetNextPageToken(), most > 0 && len(views) >= most, err
				})
				if err != nil {
					return err
				}
				err = printAll(a, views, "ID MESSAGE TOPIC STAGE CHECKS NEXT_CHECK STORED PRODUCER SIZE", func(v transactionView) []any {
					next := v.NextCheck
					if next == "" {
						next = "never"
					}
					return []any{v.ID, v.MessageID, v.Topic, v.Stage, v.Checks, next, v.StoredAt, v.BornHost, v.Size}
				})
				return errors.Join(err, unasked(missing))
			})
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "`name` of the topic; all that take transactions without it")
	cmd.Flags().StringVar(&stage, "stage", "", "`stage` to list: waiting, last-asked or given-up")
	cmd.Flags().StringVar(&messageID, "message-id", "", "`id` of the message to look for")
	cmd.Flags().IntVar(&most, "max", 100, "largest `number` of messages; 0: all")
	return cmd
}

func (a *app) transactionEnd(name, short, done string, end adminpb.TransactionEnd) *cobra.Command {
	return &cobra.Command{
		Use: name + " ID...", Short: short, Args: atLeast(1, "ID..."),
		Long: short + ". An ID is one that list shows, or the transaction id that the producer was given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTransactions(cmd, func(ctx context.Context, transactions adminpb.TransactionServiceClient) error {
				resp, err := call(ctx, method(transactions.EndTransactions), &adminpb.EndTransactionsRequest{Ids: args, End: end})
				if err != nil {
					return err
				}
				failed, err := printChanges(a, done, resp.GetResults())
				if err != nil {
					return err
				}
				if len(failed) > 0 {
					return fmt.Errorf("not %s: %s", done, strings.Join(failed, " "))
				}
				return nil
			})
		},
	}
}
