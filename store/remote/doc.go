// Package remote is the store tier on other machines: Serve makes a store node answer
// the calls of proxies, Client makes them. A Client does what a *store.Store does in one
// process, and a caller cannot tell the two apart, but for mq.ErrUnavailable.
//
// The frequent calls go over few streams, many in one message, in an encoding that
// is written and read by hand here; perigee.store.v1 says what it is. The rare ones are
// ordinary RPCs.
package remote
