package machine

import (
	"errors"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// dropPendings deletes the pending messages of a topic that is deleted. The batch must
// hold nothing of them.
func (m *Machine) dropPendings(topic mq.TopicID) error {
	if m.pendings.of[topic] == nil {
		return nil
	}
	ids, err := m.pendingsOf(topic)
	if err != nil {
		return err
	}
	for _, id := range ids {
		p, found, err := m.pending(id)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		if err := m.dropPending(id, &p); err != nil {
			return err
		}
	}
	return nil
}

// pendingsOf lists what was committed of a topic's pending messages.
func (m *Machine) pendingsOf(topic mq.TopicID) (ids []mq.PendingID, err error) {
	prefix := keyspace.AppendPendingOfPrefix(nil, topic)
	it, err := m.db.NewIter(iterOptions(prefix, keyspace.Next(append([]byte(nil), prefix...))))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		_, _, _, id, err := keyspace.DecodePendingOfKey(it.Key())
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, it.Error()
}
