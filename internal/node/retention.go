package node

import (
	"time"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// retention returns what the store is told about keeping messages. It may be
// asked for a topic before the router is open.
func (n *node) retention() shard.Retention {
	r := n.cfg.Retention
	return shard.Retention{
		Age: r.Age, Of: n.retentionOf, Size: int64(r.Size), Interval: r.Interval,
		Clean: watermark(r.Disk.Clean), Force: watermark(r.Disk.Force), Refuse: watermark(r.Disk.Refuse),
	}
}

func (n *node) transactions() shard.Transactions {
	t := n.cfg.Transactions
	return shard.Transactions{
		First: t.FirstCheck, Interval: t.CheckInterval, MaxInterval: t.MaxCheckInterval, MaxChecks: t.MaxChecks, Remember: t.Remember,
	}
}

// retentionOf returns how long the messages of a topic are kept, by the newest
// metadata, so that a change of it holds at once. A topic that the router does
// not know is unknown here too: it was deleted, which the store hears of by
// another way, or the metadata is lost, and then nothing may be removed.
func (n *node) retentionOf(id mq.TopicID) (age time.Duration, known bool) {
	select {
	case <-n.recovered:
	default:
		return 0, false // whether this is the metadata of these messages is not known yet
	}
	t, err := n.router.TopicByID(id)
	if err != nil {
		return 0, false
	}
	if t.Retention == 0 {
		return n.cfg.Retention.Age, true
	}
	return t.Retention, true
}

// liteTTL returns how long the lite topics of a topic live that nobody writes to; 0: for
// ever, and as long as the topic is not known.
func (n *node) liteTTL(id mq.TopicID) time.Duration {
	select {
	case <-n.recovered:
	default:
		return 0
	}
	t, err := n.router.TopicByID(id)
	if err != nil {
		return 0
	}
	return t.LiteTTL
}

// watermark leaves a disk that may fill up to its end without a limit.
func watermark(w config.Watermark) shard.Watermark {
	if w.Off() {
		return shard.Watermark{}
	}
	return shard.Watermark{Used: w.Fraction(), Free: int64(w.Free)}
}
