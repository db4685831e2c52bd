package node

import (
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/store/shard"
)

// The metrics, in the order of docs/operations.md, which shows the same list.
// Their names are stable: a metric that is not wanted any more stays or goes, and
// never comes back with another meaning.

// A buildReading is what the process is.
type buildReading struct{ version, goVersion string }

var buildMetrics = []column[buildReading]{
	{
		family{"perigee.build.info", gauge, none, []string{"version", "go_version"}, "1, for the version that runs."},
		func(buildReading) float64 { return 1 },
	},
}

// A stateReading is how the process is.
type stateReading struct {
	ready, routerFailed, routerDegraded bool

	recovery  float64
	disk      vfs.DiskUsage
	surveyAge float64
}

var stateMetrics = []column[*stateReading]{
	{
		family{"perigee.ready", gauge, none, nil, "1 while clients are served, as /readyz says; 0 while the store recovers, after it has failed, and while the process stops."},
		func(r *stateReading) float64 { return number(r.ready) },
	},
	{
		family{"perigee.recovery", gauge, seconds, nil, "How long it took from the start of the process until clients were served; 0 before."},
		func(r *stateReading) float64 { return r.recovery },
	},
	{
		family{"perigee.router.failed", gauge, none, nil, "1 when a write of metadata has failed and no topic or group can be changed until a restart."},
		func(r *stateReading) float64 { return number(r.routerFailed) },
	},
	{
		family{"perigee.router.degraded", gauge, none, nil, "Of a router over etcd: 1 while that does not answer, and nothing can be made or changed by way of this router. Reading goes on."},
		func(r *stateReading) float64 { return number(r.routerDegraded) },
	},
	{
		family{"perigee.disk.total", gauge, bytes, nil, "Size of the file system that holds the data directory; 0 when it cannot be told."},
		func(r *stateReading) float64 { return float64(r.disk.TotalBytes) },
	},
	{
		family{"perigee.disk.used", gauge, bytes, nil, "Bytes used on that file system, by whomever."},
		func(r *stateReading) float64 { return float64(r.disk.UsedBytes) },
	},
	{
		family{"perigee.disk.available", gauge, bytes, nil, "Bytes that this process can still use on it."},
		func(r *stateReading) float64 { return float64(r.disk.AvailBytes) },
	},
	{
		family{"perigee.survey.age", gauge, seconds, nil, "Age of the figures of topics and groups: they are gathered in the background, and kept for a second or more. 0 without any."},
		func(r *stateReading) float64 { return r.surveyAge },
	},
}

var (
	rpcDuration = family{
		"perigee.rpc.duration", durations, seconds,
		[]string{"method", "code", "grpc_code"},
		"Time to answer a call, without the time it waited on purpose: for a message, or before an error is told to clients that would repeat the call at once. By the full name of the RPC, the protocol's code of its last status, and the code of gRPC; when that is not OK the protocol's is empty.",
	}
	receiveWait = family{
		"perigee.receive.wait", durations, seconds, nil,
		"Time that calls waited on purpose, of those that did: receives for a message, and errors before they are told.",
	}
)

var proxyMetrics = []column[proxy.Stats]{
	{
		family{"perigee.telemetry.streams", gauge, none, nil, "Open Telemetry streams. An SDK keeps one for each client and endpoint."},
		func(s proxy.Stats) float64 { return float64(s.Streams) },
	},
	{
		family{"perigee.sessions", gauge, none, nil, "Clients with a Telemetry stream, or that gave a sign of life within session_timeout."},
		func(s proxy.Stats) float64 { return float64(s.Sessions) },
	},
	{
		family{"perigee.leases.renewing", gauge, none, nil, "Messages that push consumers work on and whose leases the server keeps alive."},
		func(s proxy.Stats) float64 { return float64(s.Renewing) },
	},
	{
		family{"perigee.leases.renewed", counter, none, nil, "Renewals of such leases."},
		func(s proxy.Stats) float64 { return float64(s.Renewed) },
	},
	{
		family{"perigee.leases.taken_over", counter, none, nil, "Leases that are renewed in place of another proxy, which was stopped or killed."},
		func(s proxy.Stats) float64 { return float64(s.Adopted) },
	},
	{
		family{"perigee.deliveries.memory", gauge, bytes, nil, "Bytes of messages that are on their way to consumers, as they are stored; delivery_memory is the bound."},
		func(s proxy.Stats) float64 { return float64(s.Delivering) },
	},
	{
		family{"perigee.deliveries.refused", counter, none, nil, "Receives refused because that bound was reached: consumers do not read what they asked for."},
		func(s proxy.Stats) float64 { return float64(s.DeliveriesRefused) },
	},
	{
		family{"perigee.receives.unordered", counter, none, nil, "Receives of FIFO topics by groups that are not FIFO: they get messages in any order. The log names each group and topic."},
		func(s proxy.Stats) float64 { return float64(s.Unordered) },
	},
}

// A shardReading is one shard.
type shardReading struct {
	name string
	shard.Stats
	views shard.Views
}

var ofShard = []string{"shard"}

var shardMetrics = []column[*shardReading]{
	{
		family{"perigee.shard.failed", gauge, none, ofShard, "1 when a write or sync has failed and the shard has stopped for good; the log has the cause."},
		func(r *shardReading) float64 { return number(r.Failed) },
	},
	{
		family{"perigee.shard.turn", gauge, seconds, ofShard, "How long the shard has been in its present turn; 0 when it is in none. Seconds mean that its disk does not answer; from 5 s on sends are refused, and go to other shards if they may."},
		func(r *shardReading) float64 { return r.Turn.Seconds() },
	},
	{
		family{"perigee.receives.waiting", gauge, none, ofShard, "Receives and pulls that wait for a message; max_waiting_receives is the bound."},
		func(r *shardReading) float64 { return float64(r.Waiting) },
	},
	{
		family{"perigee.lite.clients", gauge, none, ofShard, "Clients that have said which lite topics they want, in each of their groups."},
		func(r *shardReading) float64 { return float64(r.LiteClients) },
	},
	{
		family{"perigee.lite.subscriptions", gauge, none, ofShard, "Lite topics of all clients together, each counted for each client; lite.subscriptions is the bound for all shards."},
		func(r *shardReading) float64 { return float64(r.LiteSubscriptions) },
	},
	{
		family{"perigee.receives.woken", counter, none, ofShard, "Times that a waiting receive or pull was told to look again."},
		func(r *shardReading) float64 { return float64(r.Woken) },
	},
	{
		family{"perigee.messages.appended", counter, none, ofShard, "Messages that clients sent and that were stored."},
		func(r *shardReading) float64 { return float64(r.Appended) },
	},
	{
		family{"perigee.messages.appended.bytes", counter, none, ofShard, "Bytes of their bodies."},
		func(r *shardReading) float64 { return float64(r.AppendedBytes) },
	},
	{
		family{"perigee.messages.repeated", counter, none, ofShard, "Messages that were sent again, as an SDK does that got no answer, and not stored again."},
		func(r *shardReading) float64 { return float64(r.Repeated) },
	},
	{
		family{"perigee.dedup.forgotten", counter, none, ofShard, "Messages that were forgotten before the dedup window of their topic was over, because what is known takes too much memory: one of them that is sent again is stored again."},
		func(r *shardReading) float64 { return float64(r.Forgotten) },
	},
	{
		family{"perigee.dedup.memory.bytes", gauge, none, ofShard, "Memory that repeats are known by."},
		func(r *shardReading) float64 { return float64(r.KnownBytes) },
	},
	{
		family{"perigee.messages.delivered", counter, none, ofShard, "Messages leased to consumers, redeliveries included."},
		func(r *shardReading) float64 { return float64(r.Delivered) },
	},
	{
		family{"perigee.messages.pulled", counter, none, ofShard, "Messages read by PullMessage, without a lease."},
		func(r *shardReading) float64 { return float64(r.Pulled) },
	},
	{
		family{"perigee.messages.redelivered", counter, none, ofShard, "Messages leased for the second or a later time."},
		func(r *shardReading) float64 { return float64(r.Redelivered) },
	},
	{
		family{"perigee.messages.acknowledged", counter, none, ofShard, "Deliveries settled by an acknowledgement."},
		func(r *shardReading) float64 { return float64(r.Settled) },
	},
	{
		family{"perigee.acks.refused", counter, none, ofShard, "Acknowledgements of deliveries that were over: settled before, delivered again, or of a topic or group that is gone."},
		func(r *shardReading) float64 { return float64(r.Refused) },
	},
	{
		family{"perigee.leases.expired", counter, none, ofShard, "Deliveries that ended because nobody settled them in time."},
		func(r *shardReading) float64 { return float64(r.Expired) },
	},
	{
		family{"perigee.messages.dead.lettered", counter, none, ofShard, "Messages moved to a dead-letter topic."},
		func(r *shardReading) float64 { return float64(r.DeadLettered) },
	},
	{
		family{"perigee.messages.lost", counter, none, ofShard, "Deliveries, redeliveries and dead letters that ended because the message is no longer stored, or had to go for want of disk space."},
		func(r *shardReading) float64 { return float64(r.Lost) },
	},
	{
		family{"perigee.messages.unreadable", counter, none, ofShard, "Reads of stored messages that failed: the disk or its contents are damaged."},
		func(r *shardReading) float64 { return float64(r.Unreadable) },
	},
	{
		family{"perigee.messages.trimmed", counter, none, ofShard, "Messages that have left their queues: past their retention, purged, or for want of disk space; whether or not anybody has received them."},
		func(r *shardReading) float64 { return float64(r.Trimmed) },
	},
	{
		family{"perigee.messages.evicted", counter, none, ofShard, "Those of them that went before their time, for want of disk space."},
		func(r *shardReading) float64 { return float64(r.Evicted) },
	},
	{
		family{"perigee.messages.abandoned", counter, none, ofShard, "Redeliveries that nobody came for until their message was past its retention again."},
		func(r *shardReading) float64 { return float64(r.Abandoned) },
	},
	{
		family{"perigee.delayed.pending.messages", gauge, none, ofShard, "Delayed messages that wait for their time."},
		func(r *shardReading) float64 { return float64(r.Timed) },
	},
	{
		family{"perigee.delayed.delivered.messages", counter, none, ofShard, "Delayed messages that came into their queues when their time had come."},
		func(r *shardReading) float64 { return float64(r.Fired) },
	},
	{
		family{"perigee.delayed.unreadable.messages", counter, none, ofShard, "Delayed messages that could not be read when their time had come: the disk or its contents are damaged."},
		func(r *shardReading) float64 { return float64(r.TimedUnreadable) },
	},
	{
		family{"perigee.transactions.pending.messages", gauge, none, ofShard, "Half messages that wait for the end of their transaction; those given up are not among them."},
		func(r *shardReading) float64 { return float64(r.Half) },
	},
	{
		family{"perigee.transactions.given.up.messages", gauge, none, ofShard, "Half messages that were given up and wait for an operator, or for a late end."},
		func(r *shardReading) float64 { return float64(r.GivenUp) },
	},
	{
		family{"perigee.transactions.abandoned.messages", counter, none, ofShard, "Half messages that were given up: their producers did not end their transactions when asked."},
		func(r *shardReading) float64 { return float64(r.HalvesGivenUp) },
	},
	{
		family{"perigee.transactions.committed", counter, none, ofShard, "Transactions that were committed."},
		func(r *shardReading) float64 { return float64(r.Committed) },
	},
	{
		family{"perigee.transactions.rolled.back", counter, none, ofShard, "Transactions that were rolled back."},
		func(r *shardReading) float64 { return float64(r.RolledBack) },
	},
	{
		family{"perigee.transactions.checks", counter, none, ofShard, "Questions to producers about their half messages, those that reached nobody included."},
		func(r *shardReading) float64 { return float64(r.Checks) },
	},
	{
		family{"perigee.transactions.checks.returned", counter, none, ofShard, "Those of them that reached nobody, and do not count."},
		func(r *shardReading) float64 { return float64(r.Unasked) },
	},
	{
		family{"perigee.transactions.unreadable", counter, none, ofShard, "Questions that could not be asked because the half message cannot be read: the disk or its contents are damaged."},
		func(r *shardReading) float64 { return float64(r.HalvesUnreadable) },
	},
	{
		family{"perigee.pending.moved.messages", counter, none, ofShard, "Delayed and half messages written again at the end of the log, so that it could be cut."},
		func(r *shardReading) float64 { return float64(r.Moved) },
	},
	{
		family{"perigee.disk.refuse", gauge, bytes, ofShard, "From how many bytes used on sends are refused (retention.disk.refuse); 0: never."},
		func(r *shardReading) float64 { return limit(r.DiskRefuse) },
	},
	{
		family{"perigee.disk.full.refused", counter, none, ofShard, "Sends, receives, dead letters and new topics and groups refused for want of disk space."},
		func(r *shardReading) float64 { return float64(r.StoreFull) },
	},
	{
		family{"perigee.log.removals.failed", counter, none, ofShard, "Removals of files no longer needed that failed. They take room, and are tried again."},
		func(r *shardReading) float64 { return float64(r.NotRemoved) },
	},
}

var stageDuration = family{
	"perigee.stage.duration", durations, seconds,
	[]string{"shard", "stage"},
	"Time in each stage of the store: queue is how long each request waits for its round, the others are of whole rounds: append (checked, encoded and written to the log), fsync (in async mode beside the rounds), apply (carried out and committed to the views), answer.",
}

var delayedLateness = family{
	"perigee.delayed.lateness", durations, seconds, ofShard,
	"How long after their time delayed messages came into their queues, those too whose time came while the server was down.",
}

var logMetrics = []column[*shardReading]{
	{
		family{"perigee.log.records", counter, none, ofShard, "Records written to the log."},
		func(r *shardReading) float64 { return float64(r.Records) },
	},
	{
		family{"perigee.log.syncs", counter, none, ofShard, "Syncs of the log."},
		func(r *shardReading) float64 { return float64(r.Syncs) },
	},
	{
		family{"perigee.log.segments", gauge, none, ofShard, "Files of the log."},
		func(r *shardReading) float64 { return float64(r.Segments) },
	},
	{
		family{"perigee.log.size", gauge, bytes, ofShard, "Bytes of the log that are kept."},
		func(r *shardReading) float64 { return float64(r.LogBytes) },
	},
	{
		family{"perigee.log.first.position", gauge, none, ofShard, "Oldest position in the log. Positions are bytes since the shard was made."},
		func(r *shardReading) float64 { return float64(r.LogFirst) },
	},
	{
		family{"perigee.log.appended.position", gauge, none, ofShard, "Position behind the last record written."},
		func(r *shardReading) float64 { return float64(r.LogAppended) },
	},
	{
		family{"perigee.log.flushed.position", gauge, none, ofShard, "Position behind the last record that is durable."},
		func(r *shardReading) float64 { return float64(r.LogFlushed) },
	},
	{
		family{"perigee.log.applied.position", gauge, none, ofShard, "Position behind the last record that is carried out."},
		func(r *shardReading) float64 { return float64(r.LogApplied) },
	},
	{
		family{"perigee.log.views.position", gauge, none, ofShard, "Position behind the last record whose effects the views have on disk; a restart replays from there."},
		func(r *shardReading) float64 { return float64(r.views.Durable) },
	},
	{
		family{"perigee.log.unflushed", gauge, bytes, ofShard, "Appended less flushed: what a power cut would take now. In sync mode nothing of it was acknowledged."},
		func(r *shardReading) float64 { return gap(r.LogAppended, r.LogFlushed) },
	},
	{
		family{"perigee.log.unapplied", gauge, bytes, ofShard, "Appended less applied."},
		func(r *shardReading) float64 { return gap(r.LogAppended, r.LogApplied) },
	},
	{
		family{"perigee.log.replay", gauge, bytes, ofShard, "Applied less the views' position: what a restart after a crash would replay."},
		func(r *shardReading) float64 { return gap(r.LogApplied, max(r.views.Durable, r.LogFirst)) },
	},
	{
		family{"perigee.views.size", gauge, bytes, ofShard, "Disk space of the views."},
		func(r *shardReading) float64 { return float64(r.views.Bytes) },
	},
	{
		family{"perigee.views.files", gauge, none, ofShard, "Tables of the views on disk."},
		func(r *shardReading) float64 { return float64(r.views.Files) },
	},
	{
		family{"perigee.views.sublevels", gauge, none, ofShard, "Tables on top of each other that wait for a compaction. The shard waits above 12."},
		func(r *shardReading) float64 { return float64(r.views.Sublevels) },
	},
	{
		family{"perigee.views.memory", gauge, bytes, ofShard, "Effects in memory that wait to be written. The shard waits above 128 MiB, with a memory limit below 2 GiB above a sixteenth of it."},
		func(r *shardReading) float64 { return float64(r.views.MemTable) },
	},
	{
		family{"perigee.views.flushes", counter, none, ofShard, "Times that effects were written from memory to disk."},
		func(r *shardReading) float64 { return float64(r.views.Flushes) },
	},
	{
		family{"perigee.views.compactions", counter, none, ofShard, "Compactions of the views."},
		func(r *shardReading) float64 { return float64(r.views.Compactions) },
	},
	{
		family{"perigee.views.compaction.debt", gauge, bytes, ofShard, "Bytes that compactions still have to move."},
		func(r *shardReading) float64 { return float64(r.views.CompactionGap) },
	},
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// limit returns a bound, 0 when there is none.
func limit(most uint64) float64 {
	if most == math.MaxUint64 {
		return 0
	}
	return float64(most)
}

// gap returns how far the one position is ahead of the other, which may have been
// read later.
func gap(ahead, behind uint64) float64 { return max(0, float64(ahead)-float64(behind)) }
