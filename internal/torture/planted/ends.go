package main

const (
	trimFile   = "store/shard/retain_trim.go"
	dropFile   = "store/shard/retain_drop.go"
	movedFile  = "store/shard/retain_pending.go"
	retainFile = "store/machine/retain.go"
)

// ofDeadLetters break what becomes of used-up messages.
func ofDeadLetters() []mutation {
	return []mutation{
		{
			name: "a dead letter that is lost", kind: deadLetters, short: true,
			rule: "a used-up message is in the dead-letter topic",
			file: leaseFile, old: "if err := m.enqueue(t, v.Queue, v.Message, v.Time, rec.PayloadPos); err != nil {", new: "if err := m.loadQueues(t); err != nil {",
		},
		{
			name: "a dead letter twice", kind: deadLetters,
			rule: "the copy and the end of the original are one step",
			file: leaseFile, old: "return err\n\t}\n\treturn m.drop(s, ref, l)\n}", new: "return err\n\t}\n\tif v.Time%4 == 0 {\n\t\treturn m.record(ref, l)\n\t}\n\treturn m.drop(s, ref, l)\n}",
		},
		{
			name: "a dead letter that nobody makes", kind: deadLetters,
			rule: "used-up messages are moved at once, whether or not anybody receives",
			file: loopFile, old: "if len(e.UsedUp) > 0 {", new: "if len(e.UsedUp) > 1<<20 {",
		},
		{
			name: "one attempt too many", kind: deadLetters,
			rule: "a message is delivered as often as its group says, and not more often",
			file: loopFile, old: "MaxAttempts: g.Retry.MaxAttempts,", new: "MaxAttempts: g.Retry.MaxAttempts + 1,",
		},
		{
			name: "a used-up message that is ready again", kind: deadLetters,
			rule: "what is used up is not among what is delivered again, where it would be found for ever",
			file: leaseFile, old: "if l.Attempt < maxAttempts {", new: "if l.Attempt <= maxAttempts {",
		},
		{
			name: "one attempt too few", kind: deadLetters,
			rule: "a message is delivered as often as its group says before it is a dead letter",
			file: leaseFile, old: "if l.Attempt < maxAttempts {", new: "if l.Attempt+1 < maxAttempts {",
		},
		{
			name: "a dead letter by an old receipt", kind: deadLetters,
			rule: "a consumer dead-letters only what it holds",
			file: "store/shard/deadletter.go", old: "if !found || u.Lease.PopID != lease.PopID {", new: "if !found {",
		},
		{
			name: "a dead letter with another body", kind: deadLetters,
			rule: "a dead letter has the body of its original",
			file: "store/shard/deadlettercopy.go", old: "dead.Type = mq.Normal\n", new: "dead.Type, dead.Body = mq.Normal, m.Properties\n",
		},
	}
}

// ofRetention break what may leave, and when.
func ofRetention() []mutation {
	trims := []string{trimmed, theShard, theMachine}
	return []mutation{
		{
			name: "messages that leave too soon", kind: retention, by: trims,
			rule: "a message is kept as long as its topic says",
			file: "store/shard/retain.go", old: "return t.known && t.age > 0 && stored <= now-t.age", new: "return t.known && t.age > 0 && stored <= now-t.age/2",
		},
		{
			name: "messages that leave under their consumer", kind: retention, by: trims,
			rule: "what is under delivery holds its message",
			file: trimFile, old: "t.kept[ref.Queue] = min(t.kept[ref.Queue], ref.Offset)", new: "t.kept[ref.Queue] = min(t.kept[ref.Queue], ref.Offset+1)",
		},
		{
			name: "deliveries that are given up too soon", kind: retention, by: trims,
			rule: "what a consumer holds is not given up",
			file: trimFile, old: "if !waits || !t.passed(int64(l.PopID), now) {", new: "if !t.passed(int64(l.PopID)-t.age, now) {",
		},
		{
			name: "half messages that leave with the log", kind: retention, by: trims,
			rule: "a half message is kept as long as its transaction is open",
			file: movedFile, old: "for more := true; more; {", new: "for more := false; more; {",
		},
		{
			name: "a log that is cut before the views are on disk", kind: retention, by: trims,
			rule: "what is cut off the log is never replayed again",
			file: dropFile, old: "if err := r.s.flushViews(); err != nil {", new: "if err := r.s.Err(); err != nil {",
		},
		{
			name: "a log that is cut where a topic still keeps something", kind: retention, by: trims,
			rule: "a segment goes when nothing in it is kept",
			file: trimFile, old: "if pos := commitlog.Pos(e.Pos); pos < t.floor {", new: "if pos := commitlog.Pos(e.Pos); pos < t.floor && i == 0 {",
		},
		{
			name: "an emptied queue that begins anew", kind: retention, by: []string{theMachine, theShard},
			rule: "where an emptied queue ends is remembered",
			file: retainFile, old: "keyspace.Ends{Min: q.min, Kept: q.kept, Next: q.next}", new: "keyspace.Ends{Min: q.min, Kept: q.kept}",
		},
		{
			name: "a queue that begins further on than was asked", kind: retention, by: []string{theMachine, trimmed, theShard},
			rule: "a trim takes what it names and nothing more",
			file: retainFile, old: "begin := min(max(c.Min, q.min), q.next)", new: "begin := min(max(c.Min+1, q.min), q.next)",
		},
	}
}

// ofPlaces break the places of groups in queues, and what empties these.
func ofPlaces() []mutation {
	const offsetFile = "store/machine/offset.go"
	return []mutation{
		{
			name: "a reset that ends no delivery", kind: offsets, short: true,
			rule: "receipts from before a reset settle nothing",
			file: offsetFile, old: "n, err := m.dropFrom(s, q.Queue, from)", new: "n, err := m.dropFrom(s, q.Queue, from+mq.QueueOffset(t.queues[q.Queue].next))",
		},
		{
			name: "a reset that moves nothing", kind: offsets,
			rule: "a group that is set back is given everything from there on",
			file: offsetFile, old: "if err := m.setProgress(s, q.Queue, q.Offset); err != nil {", new: "if err := m.setProgress(s, q.Queue, s.progress[q.Queue]); err != nil {",
			by: []string{histories, theMachine},
		},
		{
			name: "a reset to the message behind", kind: offsets,
			rule: "a reset is to the offset that was asked for",
			file: offsetFile, old: "if err := m.setProgress(s, q.Queue, q.Offset); err != nil {", new: "if err := m.setProgress(s, q.Queue, min(q.Offset+1, t.queues[q.Queue].next)); err != nil {",
		},
		{
			name: "a reset that keeps what it should give up", kind: offsets,
			rule: "with drop a reset gives up what lies before the new place",
			file: offsetFile, old: "if c.Drop {\n\t\t\tfrom = 0", new: "if c.Drop {\n\t\t\tfrom = q.Offset",
		},
		{
			name: "a time that leads behind its message", kind: offsets,
			rule: "the offset of a time is the first one stored then or later",
			file: "store/machine/pull.go", old: "return e.StoreTime < at })", new: "return e.StoreTime <= at })",
			by: []string{histories, theMachine, theShard},
		},
		{
			name: "a reset that wakes nobody", kind: offsets,
			rule: "receives that wait are woken by a reset",
			file: offsetFile, old: "more > 0 {\n\t\t\tm.Effects.Ready", new: "more < 0 {\n\t\t\tm.Effects.Ready",
			by: []string{histories, theMachine},
		},
		{
			name: "a purge that leaves the messages", kind: purges, by: []string{histories, theMachine, theShard},
			rule: "a purge empties the queues",
			file: retainFile, old: "Min: q.next, Kept: q.next}, res)", new: "Min: q.min, Kept: q.kept}, res)",
		},
		{
			name: "a purge that leaves deliveries", kind: purges, by: []string{histories, theMachine, theShard},
			rule: "a purge ends every delivery",
			file: retainFile, old: "if err := m.dropDeliveries(id); err != nil {", new: "if err := m.Commit(); err != nil && s.leased < 0 {",
		},
		{
			name: "a purge that leaves delayed messages", kind: purges, by: []string{histories, theShard},
			rule: "a purge drops the delayed messages",
			file: "store/shard/calls.go", old: "if err := s.purgePending(ctx, id); err != nil {", new: "if err := s.Err(); err != nil {",
		},
		{
			name: "a purge that takes half messages", kind: purges, by: []string{histories, theShard},
			rule: "half messages stay when their topic is purged",
			file: "store/shard/pending.go", old: "s.pendingRefs(topic, keyspace.Timed, from, last)", new: "s.pendingRefs(topic, keyspace.Half, from, last)",
		},
		{
			name: "a deleted topic that comes back", kind: purges, by: []string{histories, theMachine},
			rule: "what was deleted stays deleted",
			file: "store/machine/topic.go", old: "if gone, err := m.TopicGone(c.ID); gone || err != nil {", new: "if _, err := m.TopicGone(c.ID); err != nil {",
		},
	}
}
