package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestOldMessagesOfOneTopicGoWhileThoseOfAnotherStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startInBubble(t, t.TempDir())
		b.createTopic(t, "short", time.Minute)
		b.createTopic(t, "long", 7*24*time.Hour)
		b.createTopic(t, "default", 0)
		for _, topic := range []string{"short", "long", "default"} {
			require.Empty(t, b.receive(t, topic, "g")) // the group starts here
			b.send(t, topic, "1", "2")
			require.Equal(t, [3]int64{2, 0, 0}, b.lag(t, topic, "g"))
		}
		time.Sleep(2 * time.Minute)
		b.send(t, "short", "3")
		require.Equal(t, [3]int64{1, 0, 0}, b.lag(t, "short", "g"))
		require.Equal(t, []string{"3"}, bodies(b.receive(t, "short", "g")))
		require.Equal(t, []string{"3"}, bodies(b.receive(t, "short", "new")), "a new group gets none either")
		for _, topic := range []string{"long", "default"} {
			require.Equal(t, [3]int64{2, 0, 0}, b.lag(t, topic, "g"))
		}
		time.Sleep(73 * time.Hour)
		require.Empty(t, b.receive(t, "default", "g"))
		require.Equal(t, [3]int64{}, b.lag(t, "default", "g"))
		require.ElementsMatch(t, []string{"1", "2"}, bodies(b.receive(t, "long", "g")))
	})
}

func TestAChangedRetentionHoldsAtOnceAndAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startInBubble(t, dir)
		b.createTopic(t, "t", time.Minute)
		retain := func(d time.Duration) {
			_, err := b.admin.UpdateTopic(t.Context(), &adminpb.UpdateTopicRequest{Name: "t", Retention: durationpb.New(d)})
			require.NoError(t, err)
		}
		b.send(t, "t", "1")
		retain(time.Hour)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"1"}, bodies(b.receive(t, "t", "a")), "a longer one")
		b.close(t)

		b = startInBubble(t, dir)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"1"}, bodies(b.receive(t, "t", "b")), "the longer one is stored")
		retain(5 * time.Minute)
		time.Sleep(time.Minute)
		require.Empty(t, b.receive(t, "t", "c"), "a shorter one")
	})
}

func TestTheRetentionOfATopicIsUnknownUntilTheRouterKnowsIt(t *testing.T) {
	r, err := router.Open(router.Options{Dir: t.TempDir(), Shards: []string{"s"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	n := &node{cfg: config.Default(), router: r, recovered: make(chan struct{})}
	early, _, err := r.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "early"}})
	require.NoError(t, err)
	_, known := n.retentionOf(early.ID)
	require.False(t, known, "metadata that does not belong to the messages is refused only later")
	close(n.recovered)
	_, known = n.retentionOf(early.ID + 1000)
	require.False(t, known)
	for want, spec := range map[time.Duration]router.TopicSpec{
		time.Hour: {Resource: mq.Resource{Name: "a"}, Retention: time.Hour}, 72 * time.Hour: {Resource: mq.Resource{Name: "b"}},
	} {
		topic, _, err := r.CreateTopic(t.Context(), spec)
		require.NoError(t, err)
		age, known := n.retentionOf(topic.ID)
		require.True(t, known)
		require.Equal(t, want, age)
	}
	g, _, err := r.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: "g"}})
	require.NoError(t, err)
	age, known := n.retentionOf(g.DeadLetter)
	require.True(t, known, "dead letters have the default")
	require.Equal(t, 72*time.Hour, age)
}

func TestLevelsOfTheDiskReachTheStore(t *testing.T) {
	n := &node{cfg: config.Default()}
	n.cfg.Retention.Disk = config.DiskRetention{Clean: config.Watermark{Percent: 100}, Force: config.Watermark{Percent: 85}, Refuse: config.Watermark{Free: 5}}
	got := n.retention()
	require.NoError(t, got.Validate())
	require.Equal(t, shard.Watermark{}, got.Clean, "no limit")
	require.Equal(t, shard.Watermark{Used: 0.85}, got.Force)
	require.Equal(t, shard.Watermark{Free: 5}, got.Refuse)
}

func TestWithoutAnAgeMessagesStayForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startInBubble(t, t.TempDir(), func(c *config.Config) { c.Retention.Age, c.Retention.Interval = 0, time.Hour })
		b.createTopic(t, "t", 0)
		b.createTopic(t, "short", time.Minute)
		b.send(t, "t", "1")
		b.send(t, "short", "1")
		time.Sleep(96 * time.Hour)
		require.Equal(t, []string{"1"}, bodies(b.receive(t, "t", "g")))
		require.Empty(t, b.receive(t, "short", "g"))
	})
}

func TestATopicWithARetentionIsDeletedLikeAnyOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startInBubble(t, t.TempDir())
		b.createTopic(t, "t", time.Minute)
		b.send(t, "t", "1")
		_, err := b.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: "t"})
		require.NoError(t, err)
		synctest.Wait()
		topics, _, err := b.store.Registered(t.Context())
		require.NoError(t, err)
		require.Empty(t, topics, "the store has heard of it")
		b.createTopic(t, "t", 0)
		b.send(t, "t", "2")
		time.Sleep(time.Hour)
		require.Equal(t, []string{"2"}, bodies(b.receive(t, "t", "g")), "the new one has another retention")
	})
}

func TestSendsToADiskBeyondItsLimitAreRefusedWithTheNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startInBubble(t, dir)
		b.createTopic(t, "t", 0) // none can be later
		b.close(t)

		b = startInBubble(t, dir, func(c *config.Config) { c.Retention.Disk.Refuse = config.Watermark{Free: 1 << 50} })
		synctest.Wait() // the first look at the disk
		refused := b.trySend(t, "t", "1")
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, refused.GetCode())
		require.Contains(t, refused.GetMessage(), "store full")
		require.Contains(t, refused.GetMessage(), dir)
		b.close(t)

		b = startInBubble(t, dir)
		b.send(t, "t", "2")
		require.Equal(t, []string{"2"}, bodies(b.receive(t, "t", "g")))
	})
}
