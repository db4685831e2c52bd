package main

const (
	leaseFile = "store/machine/lease.go"
	popFile   = "store/machine/pop.go"
	dueFile   = "store/machine/due.go"
	groupFile = "store/machine/group.go"
)

// ofLeases break who may have a message, and for how long.
func ofLeases() []mutation {
	return []mutation{
		{
			name: "a fence that is not checked", kind: leases, short: true,
			rule: "the receipt of an earlier delivery settles nothing",
			file: leaseFile, old: "case l.PopID != r.PopID:", new: "case l.PopID < r.PopID:",
		},
		{
			name: "leases that never end", kind: leases,
			rule: "a lease that ends without an acknowledgement comes back",
			file: loopFile, old: "if rd.expires, err = s.machine.Due(now); err != nil || !rd.expires {", new: "if rd.expires, err = s.machine.Due(now); err != nil || now > 0 {",
		},
		{
			name: "leases that end early", kind: leases, short: true,
			rule: "a lease lasts as long as was asked for",
			file: leaseFile, old: "return uint64(now + min(max(invisible, 0), never-1-now))", new: "return uint64(now + min(max(invisible, 0), never-1-now)*3/4)",
		},
		{
			name: "leases that end late", kind: leases,
			rule: "a lease that has ended comes back on time",
			file: loopFile, old: "wait := time.Duration(max(next-s.clock.peek(), 0))", new: "wait := time.Duration(max(next-s.clock.peek(), 0)) + time.Second",
		},
		{
			name: "leases of before a restart never end", kind: leases,
			rule: "a lease comes back wherever a restart falls",
			file: dueFile, old: "if err == nil {\n\t\t\tm.due.add(when)\n\t\t}", new: "if err == nil && when == 0 {\n\t\t\tm.due.add(when)\n\t\t}",
		},
		{
			name: "an end of leases that is stepped over", kind: leases,
			rule: "the search for leases that have ended begins where they may be",
			file: leaseFile, old: "m.due.low = uint64(c.Time)\n", new: "m.due.low = uint64(c.Time) + 1e9\n",
		},
		{
			name: "an end of leases whose last one is left out", kind: leases,
			rule: "every lease that has ended comes back",
			file: leaseFile, old: "for i, ref := range refs {\n\t\tl := leases[i]", new: "for i, ref := range refs {\n\t\tif i == 2 {\n\t\t\tm.due.remove(times[i])\n\t\t\tcontinue\n\t\t}\n\t\tl := leases[i]",
		},
		{
			name: "a second holder", kind: leases,
			rule: "what was delivered is not new any more",
			file: popFile, old: "if next != start {\n\t\tif err := m.setProgress(p.s, queue, next); err != nil {", new: "if next != start && p.index%8 != 0 {\n\t\tif err := m.setProgress(p.s, queue, next); err != nil {",
		},
		{
			name: "a second holder after a restart", kind: leases,
			rule: "the progress of a group survives a restart",
			file: groupFile, old: "m.val = keyspace.AppendOffset(m.val[:0], offset)\n\treturn m.set(m.key, m.val)", new: "m.val = keyspace.AppendOffset(m.val[:0], offset)\n\treturn nil",
		},
		{
			name: "a lease that is not written down", kind: leases,
			rule: "a lease survives a restart",
			file: leaseFile, old: "m.val = keyspace.AppendLease(m.val[:0], &l)\n\treturn m.set(m.key, m.val)", new: "m.val = keyspace.AppendLease(m.val[:0], &l)\n\tif l.Attempt == 2 {\n\t\treturn nil\n\t}\n\treturn m.set(m.key, m.val)",
		},
		{
			name: "a renewal that loses the lease", kind: leases,
			rule: "a lease that is renewed goes on",
			file: leaseFile, old: "l.State, l.When = keyspace.Leased, visibleAt(now, c.Invisible)", new: "l.State, l.When = keyspace.Leased, visibleAt(now, min(c.Invisible, 1e8))",
		},
		{
			name: "a renewal that changes nothing", kind: leases, short: true,
			rule: "a change of a lease says from now on when it ends",
			file: leaseFile, old: "l.State, l.When = keyspace.Leased, visibleAt(now, c.Invisible)", new: "l.State, l.When = keyspace.Leased, max(l.When, uint64(now))",
		},
		{
			name: "a renewal that changes the receipt", kind: leases,
			rule: "every receipt of a delivery stays good until the message is delivered again",
			file: leaseFile, old: "l.State, l.When = keyspace.Leased, visibleAt(now, c.Invisible)", new: "l.PopID, l.State, l.When = mq.PopID(now), keyspace.Leased, visibleAt(now, c.Invisible)",
		},
		{
			name: "a renewal that undoes a nack", kind: leases,
			rule: "what was given up is not renewed",
			file: leaseFile, old: "if refusal == nil && l.Nacked && c.Reason == mq.Renew {", new: "if refusal == nil && l.Nacked && c.Reason == mq.Renew && v.Time == 0 {",
			by: []string{histories, linear, theMachine},
		},
		{
			name: "an acknowledgement that does nothing", kind: leases, short: true,
			rule: "what was acknowledged is not delivered again",
			file: leaseFile, old: "if err := m.drop(s, ref, l); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t\tres.Settled", new: "if err := m.record(ref, l); err != nil && s != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t}\n\t\tres.Settled",
		},
		{
			name: "an acknowledgement that leaves its record", kind: leases,
			rule: "what was acknowledged leaves nothing behind",
			file: leaseFile, old: "if err := m.del(m.key); err != nil {\n\t\treturn err\n\t}\n\treturn m.leave(s, ref, l)", new: "if err := m.set(m.key, keyspace.AppendLease(nil, &l)); err != nil {\n\t\treturn err\n\t}\n\treturn m.leave(s, ref, l)",
		},
		{
			name: "a late acknowledgement that is refused", kind: leases,
			rule: "a receipt stays good after the end of its lease until the message is delivered again",
			file: leaseFile, old: "if refusal == nil {\n\t\t\tif err := m.drop(s, ref, l); err != nil {", new: "if refusal == nil && l.State == keyspace.Ready {\n\t\t\trefusal = ended(ref, \"late\")\n\t\t}\n\t\tif refusal == nil {\n\t\t\tif err := m.drop(s, ref, l); err != nil {",
		},
		{
			name: "a limit of deliveries that is not kept", kind: leases,
			rule: "a group has at most as many messages of a queue in flight as it may",
			file: popFile, old: "return p.InFlight > 0 && p.s.leasedOf(queue) >= p.InFlight", new: "return p.InFlight > 0 && p.s.leasedOf(queue) > p.InFlight+1",
		},
		{
			name: "a limit of deliveries that never ends", kind: leases,
			rule: "what is settled makes room under the limit",
			file: groupFile, old: "s.leasedIn = addIn(s.leasedIn, queue, n)", new: "s.leasedIn = addIn(s.leasedIn, queue, max(n, 0))",
			by: []string{histories, theMachine},
		},
		{
			name: "attempts that are not counted", kind: leases,
			rule: "two deliveries of a message never have the same number",
			file: popFile, old: "if err := m.unindex(p.s, ref, l); err != nil {\n\t\treturn false, err\n\t}\n\tl.Attempt++\n\treturn true", new: "if err := m.unindex(p.s, ref, l); err != nil {\n\t\treturn false, err\n\t}\n\treturn true",
		},
		{
			name: "a message given back that counts", kind: leases,
			rule: "a delivery that reached nobody is no attempt",
			file: leaseFile, old: "l.Attempt--\n\t\tl.Nacked, l.Try = true, 0", new: "l.Nacked, l.Try = true, 0",
		},
		{
			name: "a receive that keeps what nobody waits for", kind: leases,
			rule: "a receive that ends gives back what it has leased meanwhile",
			file: "store/shard/receive.go", old: "\t\tif ctx.Err() != nil {\n\t\t\ts.giveBack(r, got.popped, got.popID)\n\t\t\treturn nil, context.Cause(ctx)", new: "\t\tif ctx.Err() != nil {\n\t\t\treturn nil, context.Cause(ctx)",
		},
		{
			name: "a group that begins elsewhere", kind: leases,
			rule: "a new group begins with the earliest message",
			file: groupFile, old: "return q.min, nil\n", new: "return min(q.min+1, q.next), nil\n",
		},
	}
}

const laneFile = "store/machine/lane.go"

// ofMessageGroups break the order of message groups.
func ofMessageGroups() []mutation {
	return []mutation{
		{
			name: "a message group that is not blocked", kind: groups, short: true,
			rule: "a message waits for those before it in its message group",
			file: popFile, old: "return ln != nil && (p.index == 0 || ln.whole != p.index)", new: "return ln != nil && p.index == 0",
		},
		{
			name: "a message group that is never freed", kind: groups, short: true,
			rule: "what is settled lets the next one of its message group move up",
			file: laneFile, old: "if err != nil || !found || next.State != keyspace.Parked {", new: "if err != nil || !found || next.State != 0 {",
		},
		{
			name: "a message group that is freed at a failure", kind: groups,
			rule: "a message that comes again comes before those behind it",
			file: leaseFile, old: "m.rest(s, ref, &l)\n\t\treturn m.put(s, ref, l)\n\t}\n\tbefore := l", new: "before := l\n\t\tm.rest(s, ref, &l)\n\t\tif err := m.put(s, ref, l); err != nil {\n\t\t\treturn err\n\t\t}\n\t\treturn m.leave(s, ref, before)\n\t}\n\tbefore := l",
		},
		{
			name: "a used-up message that blocks for ever", kind: groups,
			rule: "what is used up counts as settled",
			file: leaseFile, old: "return m.leave(s, ref, before)", new: "_ = before\n\treturn nil",
		},
		{
			name: "an order that a restart forgets", kind: groups,
			rule: "the order of message groups survives a restart",
			file: machineGo, old: "s.join(ref, l.Lane)\n\t\t}\n\t\tswitch", new: "_ = l.Lane\n\t\t}\n\t\tswitch",
		},
		{
			name: "a lane of which the wrong one moves up", kind: groups,
			rule: "the first one of a message group that is left moves up",
			file: laneFile, old: "ref.Offset = ln.offsets[0]\n\tnext", new: "ref.Offset = ln.offsets[len(ln.offsets)-1]\n\tnext",
		},
		{
			name: "redeliveries out of order", kind: groups,
			rule: "what is given up behind others waits for them",
			file: laneFile, old: "return ln != nil && ln.offsets[0] < ref.Offset", new: "return ln != nil && ln.offsets[0] > ref.Offset",
		},
		{
			name: "an arrival that is parked twice", kind: groups,
			rule: "what was parked is not new any more",
			file: laneFile, old: "if err := m.setProgress(s, queue, offset+1); err != nil {\n\t\t\treturn parked, err", new: "if err := m.setProgress(s, queue, offset); err != nil {\n\t\t\treturn parked, err",
		},
		{
			name: "an attempt that gets another batch", kind: groups,
			rule: "a repeated attempt id gets the same messages",
			file: "store/machine/try.go", old: "if p.try == 0 || t == nil {", new: "if p.try == 0 || t == nil || len(t.refs) > 0 {",
			by: []string{histories, theMachine},
		},
		{
			name: "message groups that share a queue only", kind: groups,
			rule: "message groups block by themselves: one that is stuck holds up no other",
			file: laneFile, old: "id := laneID{ref.Queue, hash}\n\tln := s.lanes[id]", new: "hash = 1\n\tid := laneID{ref.Queue, hash}\n\tln := s.lanes[id]",
		},
	}
}
