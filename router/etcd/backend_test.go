package etcd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A peer is one router over a fake etcd.
type peer struct {
	*router.Router
	line *line
}

func openPeer(f *fakeEtcd) (*peer, error) {
	l := f.line()
	r, err := router.Open(router.Options{
		Backend: newBackend(l, DefaultPrefix, "the fake"), Shards: []string{"s1"}, AutoCreateTopics: true, AutoCreateGroups: true,
	})
	return &peer{Router: r, line: l}, err
}

// inBubble runs f with n routers over one etcd, in fake time.
func inBubble(t *testing.T, n int, f func(t *testing.T, etcd *fakeEtcd, peers []*peer)) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newFake()
		var peers []*peer
		for range n {
			p, err := openPeer(etcd)
			require.NoError(t, err)
			peers = append(peers, p)
		}
		synctest.Wait() // they watch
		defer func() {
			for _, p := range peers {
				require.NoError(t, p.Close())
			}
			etcd.late.Wait()
		}()
		f(t, etcd, peers)
	})
}

func named(s string) mq.Resource { return mq.Resource{Name: s} }

func create(p *peer, name string) (*mq.Topic, error) {
	t, _, err := p.CreateTopic(context.Background(), router.TopicSpec{Resource: named(name)})
	return t, err
}

// show is everything that a router shows.
func show(r *router.Router) string {
	all := router.Selection{AllNamespaces: true, DeadLetters: true, SystemGroups: true}
	var b strings.Builder
	lastTopic, lastGroup := r.LastIDs()
	fmt.Fprintln(&b, r.Life(), r.Revision(), lastTopic, lastGroup, r.Shards())
	for _, t := range r.ListTopics(context.Background(), all) {
		fmt.Fprintf(&b, "%+v\n", *t)
	}
	for _, g := range r.ListGroups(context.Background(), all) {
		fmt.Fprintf(&b, "%+v\n", *g)
	}
	return b.String()
}

// requireAgreement fails unless all routers show the same, and what one shows that has
// just read it.
func requireAgreement(t *testing.T, etcd *fakeEtcd, peers []*peer) {
	t.Helper()
	fresh, err := openPeer(etcd)
	require.NoError(t, err)
	defer fresh.Close()
	for _, p := range peers {
		require.Equal(t, show(fresh.Router), show(p.Router))
	}
}

func TestAChangeOfOneRouterIsShownByTheOthers(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		w := peers[2].Watch()
		_, err := w.Next(t.Context())
		require.NoError(t, err)
		a, err := create(peers[0], "a")
		require.NoError(t, err)
		synctest.Wait()
		changes, err := w.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, []router.Change{{TopicID: a.ID, Topic: a}}, changes)

		g, _, err := peers[1].CreateGroup(t.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(t, err)
		_, err = peers[2].UpdateTopic(t.Context(), named("a"), router.TopicUpdate{ReadQueues: new(int32(3))})
		require.NoError(t, err)
		_, err = peers[0].AddShard(t.Context(), "s9")
		require.NoError(t, err)
		synctest.Wait()
		requireAgreement(t, etcd, peers)
		_, err = peers[0].DeleteGroup(t.Context(), g.Resource)
		require.NoError(t, err)
		_, err = peers[1].DeleteTopic(t.Context(), a.Resource)
		require.NoError(t, err)
		again, err := create(peers[2], "a")
		require.NoError(t, err)
		require.Greater(t, again.ID, g.DeadLetter, "ids never come back")
		synctest.Wait()
		requireAgreement(t, etcd, peers)
	})
}

func TestOfTwoRoutersThatBeginOneGivesTheMetadataTheirLife(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		require.NotEmpty(t, peers[0].Life())
		require.Equal(t, peers[0].Life(), peers[1].Life())
	})
	// At the same time: both have seen that there is nothing.
	synctest.Test(t, func(t *testing.T) {
		etcd := newFake()
		first, second := newBackend(etcd.line(), "/x/", "fake"), newBackend(etcd.line(), "/x", "fake")
		nothing := func(router.Entry) error { t.Fatal("there is nothing"); return nil }
		require.NoError(t, first.Load(t.Context(), nothing))
		require.NoError(t, second.Load(t.Context(), nothing))
		counters := []router.Entry{{Key: router.CountersKey, Value: []byte(`{"v":1,"revision":1}`)}}
		require.NoError(t, first.Commit(t.Context(), counters))
		require.ErrorIs(t, second.Commit(t.Context(), counters), router.ErrConflict)
	})
}

func TestARouterThatLagsAsksBeforeItSaysNo(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		peers[1].line.set(func(l *line) { l.mu.lag = 500 * time.Millisecond })
		topic, err := create(peers[0], "t")
		require.NoError(t, err)
		got, err := peers[1].Topic(t.Context(), topic.Resource)
		require.NoError(t, err)
		require.Equal(t, topic, got)

		group, err := peers[0].EnsureGroup(t.Context(), named("g"))
		require.NoError(t, err)
		gotGroup, err := peers[1].Group(t.Context(), group.Resource)
		require.NoError(t, err)
		require.Equal(t, group, gotGroup)
		_, err = peers[1].Topic(t.Context(), named("missing"))
		require.ErrorIs(t, err, mq.ErrTopicNotFound)

		ensured, err := peers[0].EnsureTopic(t.Context(), named("e"))
		require.NoError(t, err)
		other, err := peers[1].EnsureTopic(t.Context(), named("e"))
		require.NoError(t, err)
		require.Equal(t, ensured, other, "it is not made twice")

		// What is not there any more is not said to exist by a change.
		_, err = peers[0].DeleteTopic(t.Context(), topic.Resource)
		require.NoError(t, err)
		_, created, err := peers[1].CreateTopic(t.Context(), router.TopicSpec{Resource: topic.Resource})
		require.NoError(t, err)
		require.True(t, created)
	})
}

func TestWithoutAnAnswerChangesFailAndReadingGoesOn(t *testing.T) {
	for name, how := range map[string]state{"refusing": refusing, "silent": silent} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
				topic, err := create(peers[0], "t")
				require.NoError(t, err)
				peers[0].line.set(func(l *line) { l.mu.state = how })
				_, err = create(peers[0], "other")
				require.ErrorIs(t, err, mq.ErrUnavailable)
				require.NotErrorIs(t, err, mq.ErrOutcomeUnknown, "nothing was sent")
				_, err = peers[0].Topic(t.Context(), named("other"))
				require.ErrorIs(t, err, mq.ErrUnavailable, "nobody knows that it is missing")
				got, err := peers[0].Topic(t.Context(), topic.Resource)
				require.NoError(t, err)
				require.Equal(t, topic, got)
				require.ErrorIs(t, peers[0].Degraded(), mq.ErrUnavailable)
				require.NoError(t, peers[0].Err(), "it is not for good")

				_, err = create(peers[1], "meanwhile")
				require.NoError(t, err)
				peers[0].line.heal()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.NoError(t, peers[0].Degraded())
				_, err = create(peers[0], "other")
				require.NoError(t, err)
				synctest.Wait()
				requireAgreement(t, etcd, peers)
			})
		})
	}
}

func TestHealthSaysThatEtcdDoesNotAnswerWithoutBeingAsked(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		peers[0].line.set(func(l *line) { l.mu.state = silent })
		time.Sleep(10 * time.Second)
		require.ErrorIs(t, peers[0].Degraded(), mq.ErrUnavailable)
		require.ErrorContains(t, peers[0].Degraded(), "the fake")
	})
}

func TestACommitWhoseAnswerIsLostIsFoundOut(t *testing.T) {
	for name, c := range map[string]struct {
		wrong func(*line)
		other bool // another router changes something before it is known
	}{
		"made":                        {func(l *line) { l.mu.lostReplies = 1 }, false},
		"not made":                    {func(l *line) { l.mu.lostCalls = 1 }, false},
		"made, and then lost":         {func(l *line) { l.mu.lostReplies, l.mu.lag = 1, 300*time.Millisecond }, false},
		"made later":                  {func(l *line) { l.mu.lateCalls, l.mu.lateBy = 1, 3*time.Millisecond }, false},
		"made after its repetition":   {func(l *line) { l.mu.lateCalls, l.mu.lateBy = 1, 5*time.Second }, false},
		"made, behind it another":     {func(l *line) { l.mu.lostReplies, l.mu.lag = 1, 500*time.Millisecond }, true},
		"not made, another came":      {func(l *line) { l.mu.lostCalls, l.mu.lag = 1, 500*time.Millisecond }, true},
		"late, and another came":      {func(l *line) { l.mu.lateCalls, l.mu.lateBy, l.mu.lag = 1, 400*time.Millisecond, 500*time.Millisecond }, true},
		"sent twice":                  {func(l *line) { l.mu.sentTwice = 1 }, false},
		"sent twice, another came":    {func(l *line) { l.mu.sentTwice, l.mu.lag = 1, 500*time.Millisecond }, true},
		"twice lost, made in between": {func(l *line) { l.mu.lostCalls, l.mu.lostReplies = 1, 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
				_, err := create(peers[0], "t")
				require.NoError(t, err)
				synctest.Wait()
				peers[0].line.set(c.wrong)
				done := make(chan error)
				go func() {
					_, err := peers[0].DeleteTopic(t.Context(), named("t"))
					done <- err
				}()
				if c.other {
					time.Sleep(time.Millisecond) // before the commit is repeated
					_, err = create(peers[1], "other")
					require.NoError(t, err)
				}
				require.NoError(t, <-done)
				deleted := 0
				time.Sleep(20 * time.Second)
				etcd.late.Wait()
				for _, v := range etcd.past() {
					if v.bytes == nil {
						deleted++
					}
				}
				require.Equal(t, 1, deleted)
				synctest.Wait()
				requireAgreement(t, etcd, peers)
			})
		})
	}
}

func TestACommitOfWhichNothingIsHeardAnyMoreHasAnUnknownOutcome(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		l := peers[0].line
		l.set(func(l *line) { l.mu.lostReplies, l.mu.lag = 1, 100*time.Millisecond })
		go func() {
			time.Sleep(10 * time.Millisecond)
			l.set(func(l *line) { l.mu.state = refusing })
		}()
		// The watch brings it after all, so the etcd must be gone for it too.
		l.set(func(l *line) { l.mu.deaf = true })
		_, err := create(peers[0], "t")
		require.ErrorIs(t, err, mq.ErrOutcomeUnknown)
		require.NoError(t, peers[0].Err(), "it is not for good")
		l.heal()
		time.Sleep(10 * time.Second)
		_, err = peers[0].Topic(t.Context(), named("t"))
		require.NoError(t, err)
		requireAgreement(t, etcd, peers)
	})
}

func TestAWatchThatIsBehindACompactionBeginsAnew(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		kept, err := create(peers[0], "kept")
		require.NoError(t, err)
		gone, err := create(peers[0], "gone")
		require.NoError(t, err)
		synctest.Wait()
		w := peers[1].Watch()
		_, err = w.Next(t.Context())
		require.NoError(t, err)

		peers[1].line.set(func(l *line) { l.mu.state = refusing })
		_, err = peers[0].DeleteTopic(t.Context(), gone.Resource)
		require.NoError(t, err)
		between, err := create(peers[0], "between")
		require.NoError(t, err)
		_, err = peers[0].DeleteTopic(t.Context(), between.Resource)
		require.NoError(t, err)
		made, err := create(peers[0], "new")
		require.NoError(t, err)
		etcd.compact()
		peers[1].line.heal()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		changes, err := w.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, []router.Change{{TopicID: gone.ID}, {TopicID: between.ID}, {TopicID: made.ID, Topic: made}}, changes, "no deletion is lost")
		got, err := peers[1].TopicByID(kept.ID)
		require.NoError(t, err)
		require.Equal(t, kept, got)
		requireAgreement(t, etcd, peers)
	})
}

func TestAWatchThatBringsNothingIsBegunAnew(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		synctest.Wait()
		peers[1].line.set(func(l *line) { l.mu.deaf = true })
		topic, err := create(peers[0], "t")
		require.NoError(t, err)
		got, err := peers[1].Topic(t.Context(), topic.Resource)
		require.NoError(t, err)
		require.Equal(t, topic, got)
		require.Equal(t, 2, peers[1].line.mu.watches)
	})
}

func TestChangesAtOneMomentAreAllMade(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		for _, p := range peers {
			p.line.set(func(l *line) { l.mu.lag = 2 * time.Millisecond })
		}
		const each = 20
		results := make(chan error)
		for i := range each * len(peers) {
			go func() {
				_, err := create(peers[i%len(peers)], fmt.Sprint("t", i))
				results <- err
			}()
		}
		for range each * len(peers) {
			require.NoError(t, <-results)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		topics, _ := peers[0].LastIDs()
		require.EqualValues(t, each*len(peers), topics)
		requireAgreement(t, etcd, peers)
	})
}

func TestMetadataThatWentBackAreRefusedUntilARestart(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		_, err := create(peers[0], "a")
		require.NoError(t, err)
		before := etcd.now()
		_, err = create(peers[0], "b")
		require.NoError(t, err)
		synctest.Wait()
		etcd.restore(before)
		_, err = create(peers[0], "c")
		require.ErrorIs(t, err, mq.ErrStopped)
		require.ErrorIs(t, err, router.ErrOlder)
		require.ErrorContains(t, err, "they end at revision 2, and 3 is known")
		require.ErrorIs(t, peers[0].Err(), router.ErrOlder)
		_, err = peers[0].Topic(t.Context(), named("b"))
		require.NoError(t, err)
	})
}

func TestMetadataThatWentBackAndOnAreNoticed(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		_, err := create(peers[0], "a")
		require.NoError(t, err)
		synctest.Wait()
		before := etcd.now()
		_, err = create(peers[0], "b")
		require.NoError(t, err)
		synctest.Wait()
		for _, p := range peers {
			p.line.set(func(l *line) { l.mu.state = refusing })
		}
		etcd.restore(before)
		fresh, err := openPeer(etcd) // it knows no better
		require.NoError(t, err)
		_, err = create(fresh, "other")
		require.NoError(t, err)
		peers[0].line.heal()
		_, err = create(peers[0], "c")
		require.ErrorIs(t, err, mq.ErrStopped)
		require.ErrorContains(t, err, "another past")
		_, err = create(fresh, "next")
		require.NoError(t, err)
		peers[1].line.heal()
		time.Sleep(10 * time.Second)
		require.ErrorIs(t, peers[1].Err(), mq.ErrStopped)
		require.ErrorContains(t, peers[1].Err(), "another past")
		require.NoError(t, fresh.Close())
	})
}

func TestWhatNoRouterWroteEndsTheChangesForGood(t *testing.T) {
	for name, write := range map[string]value{
		"without counters": {key: "/perigee/v1/topic//a", bytes: []byte("{}")},
		"deleted":          {key: "/perigee/v1/counters"},
		"later version":    {key: "/perigee/v1/counters", bytes: []byte(`{"v":2}`)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
				synctest.Wait()
				etcd.write("", 0, []value{write})
				synctest.Wait()
				require.ErrorIs(t, peers[0].Err(), mq.ErrStopped)
				_, err := create(peers[0], "t")
				require.ErrorIs(t, err, mq.ErrStopped)
			})
		})
	}
}

func TestKeysOfOthersAreLeftAlone(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		etcd.write("", 0, []value{{key: "/perigee2/v1/counters", bytes: []byte("x")}, {key: "/perigee", bytes: []byte("x")}})
		_, err := create(peers[0], "t")
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, peers[0].Err())
		requireAgreement(t, etcd, peers)
	})
}

func TestMoreThanAPageIsReadAtOneRevision(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
		for i := range 2*pageSize + 10 {
			_, err := create(peers[0], fmt.Sprint("t", i))
			require.NoError(t, err)
		}
		synctest.Wait()
		requireAgreement(t, etcd, peers)
	})
}

func TestCloseEndsWhatWaitsForEtcd(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		peers[0].line.set(func(l *line) { l.mu.lostReplies = 1 << 20; l.mu.lag = time.Hour })
		done := make(chan error, 1)
		go func() {
			_, err := create(peers[0], "t")
			done <- err
		}()
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, peers[0].Close())
		require.ErrorIs(t, <-done, mq.ErrOutcomeUnknown)
		_, err := create(peers[0], "u")
		require.ErrorIs(t, err, mq.ErrStopped)
		_, err = peers[0].Topic(t.Context(), named("u"))
		require.ErrorIs(t, err, mq.ErrStopped)
	})
}
