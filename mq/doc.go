// Package mq is the vocabulary of Perigee: the nouns that more than one tier
// knows (messages, queues, offsets, leases, groups, retry policies) and the
// sentinel errors that travel between tiers.
//
// It imports only the standard library, does no I/O and starts no goroutine.
// Every other package of the project may import it.
package mq
