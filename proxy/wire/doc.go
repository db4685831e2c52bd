// Package wire converts between the protocol's messages and the parts the store
// keeps. A message is taken apart once, when it is sent; a delivery is put
// together from stored bytes and never decoded.
//
// It does no I/O, validates nothing and knows no session; the proxy's handlers
// call it after validation.
package wire
