package main

const (
	logAppend  = "store/commitlog/append.go"
	logOpen    = "store/commitlog/open.go"
	logSync    = "store/commitlog/sync.go"
	logFormat  = "store/commitlog/format.go"
	logTail    = "store/commitlog/tail.go"
	loopFile   = "store/shard/loop.go"
	viewsFile  = "store/shard/views.go"
	shardFile  = "store/shard/shard.go"
	machineGo  = "store/machine/machine.go"
	appendFile = "store/machine/append.go"
	sendFile   = "store/machine/send.go"
)

// ofTheLog break what makes an acknowledged send survive.
func ofTheLog() []mutation {
	return []mutation{
		{
			name: "an answer before the fsync", kind: durability, short: true,
			rule: "in sync mode nothing is answered before the fsync that makes it durable",
			file: loopFile, old: "if s.opts.Flush == FlushSync {\n\t\tif s.stages.since",
			new: "if s.opts.Flush == FlushSync && s.log == nil {\n\t\tif s.stages.since",
		},
		{
			name: "no flush in async mode", kind: durability,
			rule: "in async mode what was answered is durable after the interval",
			file: shardFile, old: "if _, err := s.sync(); err != nil {\n\t\t\ts.fail(err)",
			new: "if err := s.Err(); err != nil {\n\t\t\ts.fail(err)",
		},
		{
			name: "a flushed position that is ahead", kind: durability,
			rule: "the flushed position is the end of the log before the sync began",
			file: logSync, old: "l.flushed.Store(end)\n\treturn l.remember(Pos(end))",
			new: "l.flushed.Store(l.appended.Load())\n\treturn l.remember(Pos(end))",
			by:  []string{histories, theLog},
		},
		{
			name: "a frame that knows too much to be durable", kind: durability,
			rule: "a frame names only what was durable when it was written, or a torn tail is taken for damage",
			file: logAppend, old: "index: l.write.next, synced: l.Flushed()}\n\tpos :=",
			new: "index: l.write.next, synced: l.Appended()}\n\tpos :=",
		},
		{
			name: "SYNCED is ahead of the log", kind: durability,
			rule: "SYNCED names only what is durable",
			file: logSync, old: "if err := l.synced.write(pos); err != nil {", new: "if err := l.synced.write(pos + 4096); err != nil {",
		},
		{
			name: "SYNCED is not looked at", kind: durability,
			rule: "a log that ends before what SYNCED remembers has lost durable records, and is refused",
			file: logOpen, old: "opts.Reach = max(opts.Reach, reach)", new: "_ = reach",
			by: []string{damaged, theLog},
		},
		{
			name: "a torn tail that is left", kind: durability,
			rule: "behind the end of the log there is nothing but zeros before anything is appended",
			file: logOpen, old: "if tail.dirty {", new: "if tail.dirty && tail.sealed {",
			by: []string{histories, theLog},
		},
		{
			name: "records of a failed fsync are taken for durable", kind: durability,
			rule: "what a failed fsync should have made durable is written again at the next open",
			file: logOpen, old: "if err := seg.rewrite(from, tail.end); err != nil {", new: "if err := seg.rewrite(max(from, tail.end), tail.end); err != nil {",
			by: []string{histories, theLog},
		},
		{
			name: "a failed fsync is tried again", kind: durability,
			rule: "a failed fsync is never tried again: the second one says nothing about what the first one lost",
			file: logSync, old: "if err := seg.file.SyncData(); err != nil {", new: "if err := seg.file.SyncData(); err != nil && seg.file.SyncData() != nil {",
			by: []string{histories, faults, theLog},
		},
		{
			name: "a sealed segment is not synced", kind: durability, short: true,
			rule: "a sealed segment is durable to its last byte before the next file exists",
			file: logAppend, old: "if err := old.file.SyncData(); err != nil {", new: "if err := l.Err(); err != nil {",
		},
		{
			name: "a new segment whose name may be lost", kind: durability,
			rule: "the directory entry of a segment is durable before a frame goes into it",
			file: logOpen, old: "if err := syncDir(opts.FS, opts.Dir); err != nil {\n\t\treturn nil, errors.Join(err, f.Close())",
			new: "if err := opts.validate(); err != nil {\n\t\treturn nil, errors.Join(err, f.Close())",
		},
		{
			name: "a checksum that is not looked at", kind: durability,
			rule: "no damaged record of the log passes for a good one",
			file: logFormat, old: "return binary.LittleEndian.Uint32(b[36:]) == crc32.Update(crc, castagnoli, b[frameHeaderSize:])",
			new: "return binary.LittleEndian.Uint32(b[36:]) == crc32.Update(crc, castagnoli, b[frameHeaderSize:]) || crc != 0",
			by:  []string{damaged, theLog},
		},
		{
			name: "a body that is not verified", kind: durability,
			rule: "no damaged message is delivered as if it were good",
			file: "store/command/message.go", old: "if !Intact(b) {\n\t\treturn mq.Message{}", new: "if len(b) < 4 {\n\t\treturn mq.Message{}",
			by: []string{histories, damaged},
		},
		{
			name: "damage before the tail is cut", kind: durability,
			rule: "bad bytes that later frames know to be durable are damage, not a torn tail",
			file: logTail, old: "case proof.known > t.end:", new: "case proof.known > end:",
			by: []string{damaged, theLog},
		},
		{
			name: "views that go ahead of the log", kind: durability,
			rule: "no effect of a record reaches the disk before the record",
			file: viewsFile, old: "if err := o.shard.log.Sync(); err != nil {", new: "if err := o.shard.log.Err(); err != nil {",
		},
		{
			name: "views whose position is not kept", kind: durability,
			rule: "the position that was applied is written in one batch with what was applied",
			file: machineGo, old: "if err := m.batch.Set(m.key, m.val, nil); err != nil {", new: "if m.state.Index%4 != 0 && m.state.Index > 8 {\n\t} else if err := m.batch.Set(m.key, m.val, nil); err != nil {",
		},
		{
			name: "replay from a wrong position", kind: durability,
			rule: "a restart goes on with the first record that the views have not applied",
			file: viewsFile, old: "from := commitlog.Pos(state.Pos)\n", new: "from := s.log.Segments()[0].First + commitlog.Pos(state.Pos-state.Pos)\n",
		},
		{
			name: "a failure that stops nothing", kind: durability,
			rule: "after a failed write of the log nothing is answered any more",
			file: loopFile, old: "s.fail(err)\n\t\t\tfor _, r := range rd.requests {\n\t\t\t\tif r != nil {\n\t\t\t\t\ts.answer(r, refusal())\n\t\t\t\t}\n\t\t\t}",
			new: "for _, r := range rd.requests {\n\t\t\t\tif r != nil {\n\t\t\t\t\t_ = refusal\n\t\t\t\t\ts.answer(r, nil)\n\t\t\t\t}\n\t\t\t}\n\t\t\ts.fail(err)",
		},
		{
			name: "views that are written after a failure", kind: durability,
			rule: "after a failure nothing of the views reaches the disk",
			file: shardFile, old: "s.viewsFS.Stop()\n\t}\n\tif first {", new: "_ = s.viewsFS\n\t}\n\tif first {",
			by: []string{histories, faults, theShard},
		},
		{
			name: "a message without an entry", kind: durability,
			rule: "an answered send is in its queue",
			file: appendFile, old: "if err := m.set(m.key, m.val); err != nil {\n\t\treturn err\n\t}\n\tq.next++",
			new: "if q.next%16 != 15 {\n\t\tif err := m.set(m.key, m.val); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\tq.next++",
		},
		{
			name: "an answer with a wrong offset", kind: durability,
			rule: "the answer to a send says where the message is",
			file: sendFile, old: "sent.Offset = next\n", new: "sent.Offset = next + 1\n",
		},
		{
			name: "an offset that is used again", kind: durability,
			rule: "an emptied or reopened queue goes on behind its last message",
			file: "store/machine/topic.go", old: "queues[i].Next = max(queues[i].Next, next)", new: "queues[i].Next = max(queues[i].Next, next-min(next, 1))",
		},
		{
			name: "a batch that is torn", kind: durability,
			rule: "all messages of a send are stored, or none",
			file: sendFile, old: "msg := v.Next()\n\t\tstored, err := m.store(t, &v, &msg, &rec, i)",
			new: "msg := v.Next()\n\t\tif i == 3 {\n\t\t\tres.Stored = append(res.Stored, res.Stored[2])\n\t\t\tcontinue\n\t\t}\n\t\tstored, err := m.store(t, &v, &msg, &rec, i)",
		},
	}
}
