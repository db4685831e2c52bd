package main

// ofServers break what only a whole server shows, whose process is killed.
func ofServers() []mutation {
	by := []string{calm, killed}
	return []mutation{
		{
			name: "a proxy that acknowledges nothing", kind: wholeServers, by: by,
			rule: "an ack that a client was answered OK has reached the store",
			file: "proxy/ack_message.go", old: "for n, err := range s.store.Ack(ctx, leases) {", new: "for n, err := range make([]error, len(leases)) {",
		},
		{
			name: "a proxy that answers before the store", kind: wholeServers, by: by,
			rule: "a send that a client was answered OK is stored",
			file: "proxy/moved.go", old: "if stored, err = s.store.Append(ctx, shard, topic, queue, converted); err == nil {",
			new: "if stored, err = make([]mq.Appended, len(converted)), nil; err == nil {\n\t\t\t\tgo s.store.Append(context.WithoutCancel(ctx), shard, topic, queue, converted)",
		},
		{
			name: "a commit that is a rollback", kind: wholeServers, by: by,
			rule: "a transaction ends as its producer says",
			file: "proxy/end_transaction.go", old: "resolution == rmqpb.TransactionResolution_COMMIT); err", new: "resolution != rmqpb.TransactionResolution_COMMIT); err",
		},
		{
			name: "a receipt of another message", kind: wholeServers, by: by,
			rule: "a receipt settles its own delivery and no other",
			file: "receipt/receipt.go", old: "binary.BigEndian.PutUint64(raw[offOffset:], uint64(l.Offset))", new: "binary.BigEndian.PutUint64(raw[offOffset:], uint64(l.Offset|1))",
		},
	}
}
