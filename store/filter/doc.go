// Package filter is the SQL92 expressions by which consumers choose messages: it
// compiles them once and evaluates them on the stored bytes of a message.
//
// It knows the expressions and the layout of stored properties, nothing of queues,
// groups or the protocol's services; it does no I/O and starts no goroutine. Whoever
// takes expressions from clients compiles them; store/shard evaluates them.
//
// What an expression means is in docs/adr/0011-types-of-messages.md.
package filter
