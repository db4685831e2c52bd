package main

// ofLites break the rules of lite topics.
func ofLites() []mutation {
	const (
		liteFile  = "store/machine/lite.go"
		popLite   = "store/machine/litepop.go"
		litesFile = "store/shard/lites.go"
		planFile  = "store/shard/liteplan.go"
	)
	return []mutation{
		{
			name: "a lite topic without an order", kind: liteTopics, short: true,
			rule: "a lite topic is delivered in order",
			file: appendFile, old: "e.Group = keyspace.LiteLane", new: "e.Group = 0",
		},
		{
			name: "a subscription that begins with the past", kind: liteTopics,
			rule: "a new subscription begins with what is sent after it",
			file: liteFile, old: "return m.offsetAt(id, l.queue, p.Value)\n\t}\n\treturn l.next, nil", new: "return m.offsetAt(id, l.queue, p.Value)\n\t}\n\treturn l.min, nil",
		},
		{
			name: "a lite place that is not kept", kind: liteTopics,
			rule: "what a group has received of a lite topic is not new any more",
			file: popLite, old: "if next != start || !known {", new: "if next != start && p.index%4 != 0 || !known {",
		},
		{
			name: "a lite topic that is not taken out", kind: liteTopics,
			rule: "a client gets nothing of what it does not want any more",
			file: litesFile, old: "delete(c.names, name)\n\tdelete(c.listed, e)\n\tl.total--", new: "if name == \"two\" {\n\t\treturn\n\t}\n\tdelete(c.names, name)\n\tdelete(c.listed, e)\n\tl.total--",
		},
		{
			name: "a lite topic that two have alone", kind: liteTopics,
			rule: "in a group with the exclusive model one client has a lite topic",
			file: planFile, old: "l.removeLocked(other, name)\n\t\t\t\tloss(other.key.client, name)", new: "loss(other.key.client, name)",
			by: []string{histories, theShard},
		},
		{
			name: "a set that keeps what it does not name", kind: liteTopics,
			rule: "a whole set replaces the one before",
			file: planFile, old: "if p.whole {\n\t\tl.keepLocked(p)", new: "if p.whole && p.fresh {\n\t\tl.keepLocked(p)",
		},
		{
			name: "a lite message that wakes nobody", kind: liteTopics,
			rule: "a receive that waits is woken by a message of a lite topic that its client wants",
			file: liteFile, old: "m.Effects.Lites = append(m.Effects.Lites, LiteEvent{Topic: id.Topic, Queue: id.Queue})", new: "_ = LiteEvent{}",
			by: []string{histories, theShard},
		},
		{
			name: "a lite topic that is put back and forgotten", kind: liteTopics,
			rule: "what a receive has left of a lite topic is found by the next one",
			file: litesFile, old: "if all || slices.Contains(queues, e.queue) {", new: "if all {",
			by: []string{histories, theShard},
		},
		{
			name: "a lite topic under another name", kind: liteTopics,
			rule: "each lite topic has a queue of its own",
			file: liteFile, old: "id := keyspace.Queue{Topic: t.ID, Queue: c.Next}\n\tc.Next++", new: "id := keyspace.Queue{Topic: t.ID, Queue: c.Next}\n\tc.Next += mq.QueueID(c.Count % 2)",
		},
		{
			name: "more lite topics than may be", kind: liteTopics, by: []string{histories, theMachine, theShard},
			rule: "a topic has no more lite topics than it may",
			file: liteFile, old: "if limit > 0 && uint64(c.Count)+uint64(n) > uint64(limit)", new: "if limit > 0 && uint64(c.Count) > uint64(limit)",
		},
	}
}

// ofChoices break which messages a receive is given, and in which order.
func ofChoices() []mutation {
	const (
		priorityFile = "store/machine/priority.go"
		lookFile     = "store/shard/look.go"
	)
	return []mutation{
		{
			name: "tags that are not looked at", kind: filters, short: true,
			rule: "a group gets what its filter wants, and nothing else",
			file: popFile, old: "case len(p.Tags) == 0:\n\t\treturn true, true", new: "case len(p.Tags) < 2:\n\t\treturn true, true",
		},
		{
			name: "a filter that does not hold for redeliveries", kind: filters, by: []string{histories, theMachine},
			rule: "a filter holds for redeliveries too",
			file: popFile, old: "if wanted, known := p.judge(ref.Queue, ref.Offset, e.Tag); !wanted {", new: "if wanted, known := p.judge(ref.Queue, ref.Offset, e.Tag); !wanted && !known {",
		},
		{
			name: "a message that nobody wants and that is never passed", kind: filters,
			rule: "a group goes past what it does not want",
			file: popFile, old: "if !wanted {\n\t\t\tnext = offset + 1\n\t\t\tcontinue\n\t\t}", new: "if !wanted {\n\t\t\treturn next, nil\n\t\t}",
		},
		{
			name: "a choice that passes what is wanted", kind: filters,
			rule: "a group goes past nothing that its filter wants",
			file: "store/command/select.go", old: "return j.Wanted[at]\n", new: "if at+1 < len(j.Wanted) {\n\t\t\t\tat++\n\t\t\t}\n\t\t\treturn j.Wanted[at]\n",
		},
		{
			name: "a choice that goes further than was looked at", kind: filters,
			rule: "what nobody has looked at is not passed",
			file: popFile, old: "return min(p.NextWanted(queue, offset), end)", new: "if to := p.NextWanted(queue, offset); to != offset {\n\t\treturn min(to+1, end)\n\t}\n\treturn offset",
		},
		{
			name: "redeliveries that a filter forgets", kind: filters, by: []string{histories, theMachine},
			rule: "only redeliveries that are not wanted are remembered as such",
			file: popFile, old: "if passing && !p.heldUp {\n\t\t\tp.s.pass(m.filter(p.Tags), seq)", new: "if (passing || seq > 0) && !p.heldUp {\n\t\t\tp.s.pass(m.filter(p.Tags), seq+1)",
		},
		{
			name: "judgements that are kept for another message", kind: filters, by: []string{histories, theShard},
			rule: "what was judged is known for its own offset alone",
			file: lookFile, old: "q.from, q.wanted = offset, slices.Delete(q.wanted, 0, at)", new: "q.from, q.wanted = offset, slices.Delete(q.wanted, 0, min(at+1, len(q.wanted)))",
		},
		{
			name: "an unwanted message that blocks its message group", kind: filters, by: []string{histories, theMachine},
			rule: "in a FIFO group what a filter does not want holds up nothing",
			file: laneFile, old: "case !wanted:\n\t\treturn false, m.drop(p.s, ref, l)", new: "case !wanted:\n\t\treturn true, nil",
		},
		{
			name: "the lowest priority first", kind: priorities, by: []string{histories, theMachine},
			rule: "higher priorities come first",
			file: priorityFile, old: "if queue != first {\n\t\t\tdone, err = b.pop(queue)", new: "if queue != first {\n\t\t\tdone, err = b.pop(mq.QueueID(len(p.t.queues)) - 1 - queue)",
		},
		{
			name: "a priority that starves", kind: priorities, by: []string{histories, theMachine},
			rule: "lower priorities come too",
			file: priorityFile, old: "if p.s.turn.Pops+1 < fairEvery {", new: "if p.s.turn.Pops < 1<<30 {",
		},
		{
			name: "redeliveries without a priority", kind: priorities, by: []string{histories, theMachine},
			rule: "higher priorities come first also when they are tried again",
			file: priorityFile, old: "if !b.skipped && countIn(b.p.s.readyIn, queue) > 0 {", new: "if !b.skipped && countIn(b.p.s.readyIn, queue) > 0 && queue == 0 {",
		},
		{
			name: "a turn that a restart forgets", kind: priorities, by: []string{histories, theMachine},
			rule: "whose turn it is survives a restart",
			file: priorityFile, old: "m.val = keyspace.AppendTurn(m.val[:0], *s.turn)\n\treturn m.set(m.key, m.val)", new: "m.val = keyspace.AppendTurn(m.val[:0], keyspace.Turn{})\n\treturn m.set(m.key, m.val)",
		},
	}
}

// ofWakeUps break that no receive waits while there is something for it.
func ofWakeUps() []mutation {
	const (
		waitersFile = "store/shard/waiters.go"
		receiveFile = "store/shard/receive.go"
	)
	return []mutation{
		{
			name: "a message that wakes nobody", kind: wakeUps, short: true,
			rule: "a receive that waits is woken by a new message",
			file: loopFile, old: "s.waiters.arrived(e.Arrived)\n", new: "",
		},
		{
			name: "a redelivery that wakes nobody", kind: wakeUps,
			rule: "a receive that waits is woken by a redelivery",
			file: loopFile, old: "s.waiters.ready(e.Ready)\n", new: "",
		},
		{
			name: "room that wakes nobody", kind: wakeUps, by: []string{histories, theShard},
			rule: "a receive that waits for room is woken when something is settled",
			file: loopFile, old: "s.waiters.freed(e.Freed)\n", new: "",
		},
		{
			name: "a wake-up that is not passed on", kind: wakeUps, by: []string{histories, theShard},
			rule: "a receive that ends passes its wake-up on",
			file: waitersFile, old: "case <-w.c:\n\t\tws.wakeLocked(ws.lists[w.of.key])", new: "case <-w.c:",
		},
		{
			name: "a receive that takes all and tells nobody", kind: wakeUps, by: []string{histories, theShard},
			rule: "a receive that leaves something wakes the next one",
			file: receiveFile, old: "if err != nil || got.left || got.more || what.look.isCalled() {", new: "if err != nil {",
		},
		{
			name: "a receive that looks before it can be woken", kind: wakeUps, by: []string{histories, theShard},
			rule: "a receive registers before it looks",
			file: receiveFile, old: "s.waiters.register(w, what)\n\t\tgot, err := s.find(ctx, r, what.look, end)", new: "got, err := s.find(ctx, r, what.look, end)\n\t\ts.waiters.register(w, what)",
		},
		{
			name: "a deletion that wakes nobody", kind: wakeUps, by: []string{histories, theShard},
			rule: "a receive ends when its topic is deleted",
			file: loopFile, old: "if e.Gone {\n\t\ts.waiters.wakeAll()", new: "if e.Gone {",
		},
		{
			name: "a pull that nobody wakes", kind: wakeUps, by: []string{histories, theShard},
			rule: "a pull that waits is woken by a message of its queue",
			file: loopFile, old: "s.pulls.arrived(e.Arrived)\n", new: "",
		},
	}
}

// ofClocks break what goes by which clock.
func ofClocks() []mutation {
	const clockFile = "store/shard/clock.go"
	return []mutation{
		{
			name: "a clock that goes back", kind: clocks,
			rule: "a start with a clock that was set back goes on from the last time in the log",
			file: clockFile, old: "begin := max(wall.UnixNano(), last)", new: "begin := wall.UnixNano()",
			by: []string{histories, clocked},
		},
		{
			name: "leases by the wall clock", kind: clocks,
			rule: "a step of the wall clock moves no lease",
			file: loopFile, old: "now := s.clock.begin()\n", new: "s.clock.begin()\n\tnow := s.wall()\n\ts.clock.round = now\n",
		},
		{
			name: "delays by the clock of leases", kind: clocks, short: true,
			rule: "delayed messages go by the wall clock",
			file: clockFile, old: "return s.opts.Wall().UnixNano()", new: "return s.clock.peek()",
			by: []string{histories, theShard},
		},
		{
			name: "two commands at one time", kind: clocks,
			rule: "no two deliveries of a message have the same id",
			file: clockFile, old: "c.last = max(c.round, c.last+1)", new: "c.last = max(c.round, c.last) / 1e9 * 1e9",
		},
	}
}
