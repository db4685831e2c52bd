package proxy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// setters sets the fields that make a message what it is, each for its type.
var setters = map[rmqpb.MessageType]func(*rmqpb.SystemProperties){
	rmqpb.MessageType_DELAY:    func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = timestamppb.Now() },
	rmqpb.MessageType_FIFO:     func(p *rmqpb.SystemProperties) { p.MessageGroup = new("g") },
	rmqpb.MessageType_PRIORITY: func(p *rmqpb.SystemProperties) { p.Priority = new(int32(1)) },
	rmqpb.MessageType_LITE:     func(p *rmqpb.SystemProperties) { p.LiteTopic = new("l") },
}

// storedTypes are the types that are stored.
var storedTypes = map[rmqpb.MessageType]bool{
	rmqpb.MessageType_NORMAL: true, rmqpb.MessageType_FIFO: true, rmqpb.MessageType_DELAY: true, rmqpb.MessageType_TRANSACTION: true,
	rmqpb.MessageType_PRIORITY: true, rmqpb.MessageType_LITE: true,
}

func TestOnlyTheFieldOfItsTypeMayComeWithAMessage(t *testing.T) {
	s := newTestServer(t)
	types := []mq.TopicType{mq.TopicNormal, mq.TopicFIFO, mq.TopicDelay, mq.TopicTransaction, mq.TopicLite, mq.TopicPriority, mq.TopicMixed}
	for _, typ := range types {
		s.topic(t, typ.String(), router.TopicSpec{Type: typ})
	}
	makers := []rmqpb.MessageType{rmqpb.MessageType_DELAY, rmqpb.MessageType_FIFO, rmqpb.MessageType_PRIORITY, rmqpb.MessageType_LITE}
	stored := 0
	for _, topic := range types {
		for declared := range rmqpb.MessageType_name {
			for fields := range 1 << len(makers) {
				m := message(topic.String(), fmt.Sprint("m", declared, "-", fields), "body")
				m.SystemProperties.MessageType = rmqpb.MessageType(declared)
				var set []rmqpb.MessageType
				for i, maker := range makers {
					if fields&(1<<i) != 0 {
						setters[maker](m.SystemProperties)
						set = append(set, maker)
					}
				}
				res := s.try(t, m)
				got, text := res.GetStatus().GetCode(), res.GetStatus().GetMessage()

				// What the message is, if it is anything.
				is := rmqpb.MessageType(declared)
				if is == 0 && len(set) == 1 {
					is = set[0]
				} else if is == 0 {
					is = rmqpb.MessageType_NORMAL
				}
				_, hasField := setters[is]
				sound := len(set) == 0 && !hasField || len(set) == 1 && set[0] == is
				want := rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
				switch {
				case sound && topic.Accepts(mq.MessageType(is)) && storedTypes[is]:
					want = rmqpb.Code_OK
					stored++
				case sound && topic.Accepts(mq.MessageType(is)):
					want = rmqpb.Code_NOT_IMPLEMENTED
				}
				require.Equal(t, want, got, "%s topic, declared %d, with %v: %s", topic, declared, set, text)
				if want != rmqpb.Code_OK {
					require.Contains(t, text, "message_type")
					require.Empty(t, res.GetEntries())
				}
			}
		}
	}
	require.EqualValues(t, stored, s.nodes.Stats()[testShard].Appended, "what was refused is not stored")
	// Each, declared or not, to a topic of its type and, but PRIORITY, to a MIXED one;
	// nothing but the declaration makes a transaction.
	require.Equal(t, 18, stored)
}

func TestANegativePriorityIsRefused(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority})
	m := message("urgent", "m", "body")
	m.SystemProperties.MessageType, m.SystemProperties.Priority = rmqpb.MessageType_PRIORITY, new(int32(-1))
	res := s.try(t, m)
	require.Equal(t, rmqpb.Code_BAD_REQUEST, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "priority")
}
