package node

import (
	"slices"
	"time"

	"github.com/perigee-mq/perigee/store/shard"
)

// A topicReading is one topic on one shard, or the rest of the shard's topics.
type topicReading struct {
	shard, topic string
	*shard.TopicRow
}

var ofTopic = []string{"shard", "topic"}

var topicMetrics = []column[topicReading]{
	{
		family{"perigee.topic.in.messages", counter, none, ofTopic, "Messages stored in the topic, dead letters included."},
		func(r topicReading) float64 { return float64(r.In) },
	},
	{
		family{"perigee.topic.in", counter, bytes, ofTopic, "Bytes of these messages as they are stored: bodies, properties and some framing."},
		func(r topicReading) float64 { return float64(r.InBytes) },
	},
	{
		family{"perigee.topic.out.messages", counter, none, ofTopic, "Messages of the topic leased to consumers, redeliveries included, and pulled."},
		func(r topicReading) float64 { return float64(r.Out) },
	},
	{
		family{"perigee.topic.out", counter, bytes, ofTopic, "Bytes of these messages as they are stored."},
		func(r topicReading) float64 { return float64(r.OutBytes) },
	},
	{
		family{"perigee.topic.stored.messages", gauge, none, ofTopic, "Messages that the topic holds, delivered or not."},
		func(r topicReading) float64 { return float64(r.Stored) },
	},
	{
		family{"perigee.topic.lite.topics", gauge, none, ofTopic, "Lite topics of the topic."},
		func(r topicReading) float64 { return float64(r.Lites) },
	},
	{
		family{"perigee.topic.delayed.messages", gauge, none, ofTopic, "Delayed messages of the topic that wait for their time."},
		func(r topicReading) float64 { return float64(r.Timed) },
	},
	{
		family{"perigee.topic.half.messages", gauge, none, ofTopic, "Half messages of the topic that wait for the end of their transaction."},
		func(r topicReading) float64 { return float64(r.Half) },
	},
	{
		family{"perigee.topic.given.up.messages", gauge, none, ofTopic, "Half messages of the topic that were given up."},
		func(r topicReading) float64 { return float64(r.GivenUp) },
	},
}

// A groupReading is one group with one topic on one shard, or the rest of the
// shard's groups.
type groupReading struct {
	shard, group, topic string
	*shard.GroupRow
}

var ofGroup = []string{"shard", "group", "topic"}

var groupMetrics = []column[groupReading]{
	{
		family{"perigee.group.ready.messages", gauge, none, ofGroup, "Messages that wait to be received by the group: its lag. Those that a filter will pass over are among them."},
		func(r groupReading) float64 { return float64(r.New + r.Retrying + r.Blocked) },
	},
	{
		family{"perigee.group.blocked.messages", gauge, none, ofGroup, "Those of them that wait for earlier ones of their message group: the group is FIFO."},
		func(r groupReading) float64 { return float64(r.Blocked) },
	},
	{
		family{"perigee.group.retrying.messages", gauge, none, ofGroup, "Those of them that were delivered before."},
		func(r groupReading) float64 { return float64(r.Retrying) },
	},
	{
		family{"perigee.group.oldest.age", gauge, seconds, ofGroup, "Age of the oldest message that the group was never given, since it was stored; 0 without one."},
		func(r groupReading) float64 { return time.Duration(r.Oldest).Seconds() },
	},
	{
		family{"perigee.group.waiting.lite.topics", gauge, none, ofGroup, "Lite topics that have messages which the group was never given."},
		func(r groupReading) float64 { return float64(r.Lites) },
	},
	{
		family{"perigee.group.in.flight.messages", gauge, none, ofGroup, "Messages that consumers of the group hold: delivered, not settled, and not yet due again. A message that was given up and is to be delivered again later is one."},
		func(r groupReading) float64 { return float64(r.InFlight) },
	},
	{
		family{"perigee.group.used.up.messages", gauge, none, ofGroup, "Messages without an attempt left that wait to be moved to the dead-letter topic."},
		func(r groupReading) float64 { return float64(r.UsedUp) },
	},
	{
		family{"perigee.group.delivered.messages", counter, none, ofGroup, "Messages leased to consumers of the group, redeliveries included."},
		func(r groupReading) float64 { return float64(r.Delivered) },
	},
	{
		family{"perigee.group.redelivered.messages", counter, none, ofGroup, "Messages leased for the second or a later time."},
		func(r groupReading) float64 { return float64(r.Redelivered) },
	},
	{
		family{"perigee.group.acknowledged.messages", counter, none, ofGroup, "Deliveries settled by an acknowledgement."},
		func(r groupReading) float64 { return float64(r.Settled) },
	},
	{
		family{"perigee.group.refused.acks", counter, none, ofGroup, "Acknowledgements of deliveries that were over."},
		func(r groupReading) float64 { return float64(r.Refused) },
	},
	{
		family{"perigee.group.expired.leases", counter, none, ofGroup, "Deliveries that ended because nobody settled them in time."},
		func(r groupReading) float64 { return float64(r.Expired) },
	},
	{
		family{"perigee.group.dead.lettered.messages", counter, none, ofGroup, "Messages moved to the dead-letter topic of the group."},
		func(r groupReading) float64 { return float64(r.DeadLettered) },
	},
	{
		family{"perigee.group.lost.messages", counter, none, ofGroup, "Deliveries, redeliveries and dead letters that ended because the message is no longer stored, or had to go for want of disk space."},
		func(r groupReading) float64 { return float64(r.Lost) },
	},
	{
		family{"perigee.group.unreadable.messages", counter, none, ofGroup, "Reads of stored messages that failed."},
		func(r groupReading) float64 { return float64(r.Unreadable) },
	},
}

// A droppedReading is how much of a shard has no series of its own.
type droppedReading struct {
	shard          string
	topics, groups int
}

var droppedMetrics = []column[droppedReading]{
	{
		family{"perigee.metrics.dropped.topics", gauge, none, ofShard, "Topics without series of their own, because metrics.max_topics others have them: they count under the topic _other."},
		func(r droppedReading) float64 { return float64(r.topics) },
	},
	{
		family{"perigee.metrics.dropped.groups", gauge, none, ofShard, "Pairs of group and topic without series of their own: they count under the group and topic _other."},
		func(r droppedReading) float64 { return float64(r.groups) },
	},
}

// catalog returns every metric of the process in the order of the documentation.
func catalog() []family {
	return slices.Concat(
		families(buildMetrics), families(stateMetrics), []family{rpcDuration, receiveWait},
		families(connectionMetrics), families(refusalMetrics), families(tlsMetrics), families(proxyMetrics),
		families(followMetrics), families(deploymentMetrics), families(nodesMetrics), families(storesMetrics), families(storeCallMetrics),
		families(tierStreamMetrics), []family{tierDuration}, families(shardMetrics),
		[]family{delayedLateness, stageDuration}, families(logMetrics),
		families(topicMetrics), families(groupMetrics), families(droppedMetrics),
	)
}

func families[R any](columns []column[R]) []family {
	list := make([]family, len(columns))
	for i, c := range columns {
		list[i] = c.family
	}
	return list
}
