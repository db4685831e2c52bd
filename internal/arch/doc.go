// Package arch holds the rules of the tree as tests: who may import whom, how
// large a file may be, that every package says what it is, and which calls are
// not made. Each rule names its reason.
package arch
