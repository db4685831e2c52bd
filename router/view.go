package router

import (
	"sync/atomic"

	"github.com/perigee-mq/perigee/mq"
)

// A View is what somebody knows of the metadata: the newest snapshot, and who waits for
// the next one. A Router is one, and so is a Mirror, which follows a router elsewhere.
//
// All methods may be called at any time from any goroutine. What they return is shared
// and must not be changed. Reading takes no lock and does no I/O, and goes on after the
// end of whoever feeds the view.
type View struct {
	current atomic.Pointer[snapshot]
	closed  chan struct{} // closed when there will be no other snapshot
}

// LastIDs returns the last ids handed out. At the time of the snapshot nobody had seen a
// higher one.
func (v *View) LastIDs() (mq.TopicID, mq.GroupID) {
	s := v.current.Load()
	return s.lastTopic, s.lastGroup
}

// Revision returns the number of the newest snapshot. It grows by one with
// every change, and goes on after a restart.
func (v *View) Revision() uint64 { return v.current.Load().revision }

// Life names the metadata, from their beginning on: revisions and ids of metadata of
// another life have nothing to do with these. It is empty for metadata that was not asked
// for it by any Router's EnsureLife.
func (v *View) Life() string { return v.current.Load().life }

// Shards returns the shards that are written down, in the order of their names, those
// that were removed too. The shards of Options are not among them.
func (v *View) Shards() []Shard { return v.current.Load().shards }
