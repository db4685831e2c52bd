// Package router owns the metadata of a cluster: which topics and consumer
// groups exist, and which shard serves which of their queues. It hands out
// their ids and publishes what it knows as immutable snapshots.
//
// It never sees a message, knows no protocol, and does not decide which kinds
// of topic or group a deployment allows: that is the caller's. Whoever serves
// clients asks it by name; the node watches it to tell the stores.
//
// The truth lies in a Backend. The embedded one is a small Pebble database in
// a directory of its own; docs/format/metadata.md describes its entries. A SharedBackend,
// of which package etcd has one, is the truth of several routers: each follows what the
// others commit, and asks for the newest commit before it says that something is missing.
package router
