package remote_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// A node that was away when the questions of all were asked for, or that was not there at
// all, has questions itself. Nobody else has any.
func TestANodeThatComesIsAskedForItsQuestionsAlthoughOthersHaveNone(t *testing.T) {
	for name, before := range map[string]func(c *cluster, h *hooked){
		"back": func(c *cluster, h *hooked) { c.start(nodeB, h, "r").stop() },
		"new":  func(*cluster, *hooked) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent := &hooked{checks: func(ctx context.Context) ([]mq.Check, error) { <-ctx.Done(); return nil, ctx.Err() }}
				asks := &hooked{checks: func(context.Context) ([]mq.Check, error) {
					return []mq.Check{{PendingHandle: mq.PendingHandle{Shard: "r", Topic: 7, ID: 3}}}, nil
				}}
				one(t, silent, func(cl *cluster, _ *testNode, c *remote.Client) {
					before(cl, asks)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					found := make(chan []mq.Check, 1)
					go func() {
						for {
							got, err := c.Checks(ctx, nil, 16)
							if len(got) > 0 || err != nil {
								found <- got
								return
							}
						}
					}()
					time.Sleep(4 * time.Second)
					cl.start(nodeB, asks, "r")
					began := time.Now()
					got := <-found
					require.Len(t, got, 1)
					require.Equal(t, "r", got[0].Shard)
					require.Less(t, time.Since(began), 10*time.Second)
				})
			})
		})
	}
}

// That is how the asking begins again for other topics: a producer came or went.
func TestTheWaitForQuestionsEndsWithItsContextAndWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &hooked{checks: func(ctx context.Context) ([]mq.Check, error) { <-ctx.Done(); return nil, ctx.Err() }}
		one(t, silent, func(_ *cluster, _ *testNode, c *remote.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			got, err := c.Checks(ctx, nil, 16)
			require.NoError(t, err)
			require.Empty(t, got)
		})
	})
}
