package main

const (
	txFile      = "store/machine/transaction.go"
	fireFile    = "store/machine/fire.go"
	pendingFile = "store/machine/pending.go"
	timedFile   = "store/shard/timed.go"
)

// ofPending break the rules of half messages and of delayed ones.
func ofPending() []mutation {
	return []mutation{
		{
			name: "a half message that is seen", kind: halves, short: true,
			rule: "a half message is never seen before it is committed",
			file: sendFile, old: "case msg.Type == mq.Transaction:", new: "case msg.Type == mq.Transaction && now%4 != 0:",
		},
		{
			name: "a rollback that is seen", kind: halves,
			rule: "a message that was rolled back is never seen",
			file: "store/shard/transaction.go", old: "if commit {\n\t\tr.end.Message = msg", new: "if commit || r.end.ID != 0 {\n\t\tr.end.Message = msg",
		},
		{
			name: "a commit that is lost", kind: halves,
			rule: "a committed message comes",
			file: txFile, old: "if err := m.enqueue(t, p.Queue, v.Message, v.Time, payload); err != nil {", new: "if err := m.loadQueues(t); err != nil {",
		},
		{
			name: "a second end that is taken", kind: halves,
			rule: "the first end of a transaction wins",
			file: txFile, old: "case p.State == keyspace.Committed || p.State == keyspace.RolledBack:\n\t\treturn fmt.Errorf(\"pending message %d is %s: %w\", v.ID, p.State, mq.ErrTransactionEnded), nil\n\tcase !p.State.Open():",
			new: "case !p.State.Open() && p.State != keyspace.Committed && p.State != keyspace.RolledBack:",
		},
		{
			name: "a commit twice", kind: halves,
			rule: "a committed message comes once, however often it is committed",
			file: txFile, old: "case p.State == end:\n\t\treturn nil, nil // asked again\n\tcase p.State == keyspace.Committed ||",
			new: "case p.State == end && !v.Commit:\n\t\treturn nil, nil // asked again\n\tcase p.State == keyspace.Committed && v.Commit:\n\tcase p.State == keyspace.Committed ||",
			by:  []string{histories, theMachine},
		},
		{
			name: "the same end again is refused", kind: halves,
			rule: "to end a transaction again the same way is no error",
			file: "store/shard/transaction.go", old: "case rec.State == keyspace.Committed && commit, rec.State == keyspace.RolledBack && !commit:", new: "case rec.State == keyspace.RolledBack && !commit:",
		},
		{
			name: "producers that are never asked", kind: halves,
			rule: "a producer that does not end its transaction is asked",
			file: txFile, old: "if m.PendingOf(topic, keyspace.Half) == 0 {", new: "if m.PendingOf(topic, keyspace.Half) >= 0 {",
		},
		{
			name: "an asker who is not told", kind: halves,
			rule: "who waits for questions is woken by a half message that is to be asked about sooner",
			file: txFile, old: "if old == nil || old.State != keyspace.Half || now.At < old.At {", new: "if old != nil && old.State != keyspace.Half {",
		},
		{
			name: "a question that two get", kind: halves,
			rule: "each question is handed out once",
			file: txFile, old: "if p.Checks != ref.From {", new: "if p.Checks < ref.From {",
			by: []string{histories, theMachine},
		},
		{
			name: "a half message that is given up and gone", kind: halves,
			rule: "a half message is kept as long as its transaction is open",
			file: txFile, old: "now.State, now.At = keyspace.GivenUp, never", new: "now.State, now.At = keyspace.RolledBack, never",
		},
		{
			name: "a delayed message that is early", kind: delays, short: true,
			rule: "a delayed message is never early",
			file: timedFile, old: "now := d.s.wall()\n\t\tpage, crowded, err := d.look(from, now)", new: "now := d.s.wall() + 1e9\n\t\tpage, crowded, err := d.look(from, now)",
		},
		{
			name: "a delayed message that is late", kind: delays,
			rule: "a delayed message comes when its time has come",
			file: timedFile, old: "left := max(time.Duration(next-d.s.wall()), 0)\n", new: "left := max(time.Duration(next-d.s.wall()), 0) + time.Second\n",
		},
		{
			name: "a recall that does nothing", kind: delays, short: true,
			rule: "a delayed message that was recalled never comes",
			file: fireFile, old: "return nil, m.changePending(ref.ID, &p, &now)", new: "if c.Op == command.RecallPending {\n\t\treturn nil, nil\n\t}\n\treturn nil, m.changePending(ref.ID, &p, &now)",
		},
		{
			name: "a recall that comes too late", kind: delays,
			rule: "what was delivered is not recalled",
			file: fireFile, old: "case !found:\n\t\treturn false, notPending(ref.ID, \"it was delivered", new: "case !found && c.Op == command.RecallPending:\n\t\treturn false, nil\n\tcase !found:\n\t\treturn false, notPending(ref.ID, \"it was delivered",
		},
		{
			name: "a message recalled while it was read", kind: delays,
			rule: "what is delivered is looked at again when it is delivered",
			file: fireFile, old: "case !found || p.State != keyspace.Timed || p.Topic != msg.Topic || p.Queue != msg.Queue:\n\t\treturn notPending(msg.ID, \"it waits no more\"), nil\n\tcase p.At > v.Until:",
			new: "case !found || p.Topic != msg.Topic || p.Queue != msg.Queue:\n\t\treturn notPending(msg.ID, \"it waits no more\"), nil\n\tcase p.State == keyspace.Timed && p.At > v.Until:",
			by:  []string{histories, theMachine},
		},
		{
			name: "a time that is not moved", kind: delays,
			rule: "a message that was postponed comes at its new time",
			file: fireFile, old: "if now.At = c.At; c.Op", new: "if now.At = min(c.At, p.At); c.Op",
		},
		{
			name: "delays that a restart forgets", kind: delays,
			rule: "delayed messages survive a restart",
			file: pendingFile, old: "if err == nil {\n\t\t\tm.pendings.count(&p, 1)", new: "if err == nil && p.State != keyspace.Timed {\n\t\t\tm.pendings.count(&p, 1)",
		},
		{
			name: "a delayed message that is lost", kind: delays,
			rule: "a delayed message comes",
			file: fireFile, old: "return nil, m.enqueue(t, p.Queue, msg.StoredMessage, v.Time, payload)", new: "if p.Queue == 1 {\n\t\treturn nil, nil\n\t}\n\treturn nil, m.enqueue(t, p.Queue, msg.StoredMessage, v.Time, payload)",
		},
		{
			name: "a delayed message that comes twice", kind: delays,
			rule: "a delayed message comes once",
			file: fireFile, old: "if err := m.dropPending(msg.ID, &p); err != nil {\n\t\treturn nil, err\n\t}\n\tt, err := m.writable(p.Topic, p.Queue)", new: "again := p\n\tagain.At = v.Time + 1e9\n\tif err := m.changePending(msg.ID, &p, &again); err != nil {\n\t\treturn nil, err\n\t}\n\tt, err := m.writable(p.Topic, p.Queue)",
		},
		{
			name: "a delivery that is not told of an earlier time", kind: delays,
			rule: "who delivers delayed messages is woken for one that is due sooner",
			file: loopFile, old: "s.timed.next.Store(next)\n\t\tsignal(s.timed.wake)", new: "s.timed.next.Store(next)",
		},
	}
}

// ofRepeats break that a message which is sent again is stored once.
func ofRepeats() []mutation {
	const repeatFile = "store/machine/repeat.go"
	return []mutation{
		{
			name: "a repeat that is stored", kind: repeats, short: true,
			rule: "a message that is sent again inside the window is stored once",
			file: sendFile, old: "if found || err != nil {", new: "if found && v.Time%4 != 0 || err != nil {",
		},
		{
			name: "a repeat that gets another answer", kind: repeats,
			rule: "a message that is sent again gets the first answer",
			file: sendFile, old: "return Stored{Sent: sent, Repeated: true}, err", new: "sent.Offset++\n\t\t\treturn Stored{Sent: sent, Repeated: true}, err",
		},
		{
			name: "repeats that a restart forgets", kind: repeats,
			rule: "after a restart a message that is sent again is known",
			file: repeatFile, old: "s.table.add(sentHash(r.Topic, sent.At(i).Content), r.Index)", new: "s.table.add(sentHash(r.Topic, sent.At(i).Content)+1, r.Index)",
		},
		{
			name: "a window that ends too soon", kind: repeats,
			rule: "a message is known until the end of its window",
			file: repeatFile, old: "if found && now-sent.StoreTime >= window {", new: "if found && now-sent.StoreTime >= window-1e9 {",
			by: []string{histories, theMachine},
		},
		{
			name: "a window that does not end", kind: repeats,
			rule: "behind its window a message is another one",
			file: repeatFile, old: "if found && now-sent.StoreTime >= window {", new: "if found && now-sent.StoreTime >= 4*window {",
			by: []string{histories, theMachine},
		},
		{
			name: "a repeat that gets the answer to another message", kind: repeats,
			rule: "the answer is that to the message with the same id, not to another one",
			file: repeatFile, old: "sent, found = all.Find(id, content, r.Index)", new: "for i := range all.Len() {\n\t\t\t\tif sent, found = all.Find(all.At(i).ID, all.At(i).Content, r.Index); found {\n\t\t\t\t\tbreak\n\t\t\t\t}\n\t\t\t}",
		},
	}
}
