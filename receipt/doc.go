// Package receipt turns a lease into the receipt handle a client holds, and
// back. A handle is opaque to clients: a version, all that routing and fencing
// need, and a checksum, as URL-safe text.
//
// It does no I/O, keeps no state and does not decide whether a lease still
// holds; that is the store's. The proxy calls it on every delivery and every
// settlement.
//
// A handle is not a secret and not signed: it proves nothing about who holds
// it. Whoever acts on one checks the topic and group it names.
package receipt
