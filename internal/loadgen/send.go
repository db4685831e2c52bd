package loadgen

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// SendLoad is a load of sends.
type SendLoad struct {
	Load
	// Size is the number of bytes of a body, at least 1.
	Size int
	// Batch is the number of messages of a request, at least 1.
	Batch int
	// Tag, when set, is the tag of every message.
	Tag string
	// Groups, when set, is the number of message groups that the requests to a FIFO topic
	// have in turn, up to MaxGroups; 0: one for each worker.
	Groups int
	// Lites is the number of lite topics that the requests to a LITE topic go to in turn, up
	// to MaxGroups; LiteName has their names. 0: one.
	Lites int
	// DeliverFrom, when set, is the time of delivery of the first messages to a DELAY topic,
	// and DeliverOver how long after it the last ones are due.
	DeliverFrom time.Time
	DeliverOver time.Duration
	// Properties, when set, are the user properties of every message.
	Properties map[string]string
	// OneResult says that the server answers a request of several messages with one
	// result, which is that of all of them, as servers of other makers do.
	OneResult bool

	stamp *stamp // of an end-to-end load
}

func (l SendLoad) validate() error {
	switch {
	case l.Size < 1:
		return fmt.Errorf("size %d: must be 1 or more", l.Size)
	case l.Batch < 1:
		return fmt.Errorf("batch %d: must be 1 or more", l.Batch)
	case l.Groups < 0 || l.Groups > MaxGroups:
		return fmt.Errorf("groups %d: must lie between 0 and %d", l.Groups, MaxGroups)
	case l.Lites < 0 || l.Lites > MaxGroups:
		return fmt.Errorf("lite topics %d: must lie between 0 and %d", l.Lites, MaxGroups)
	case l.DeliverOver < 0:
		return fmt.Errorf("time of delivery: must not be spread over %v", l.DeliverOver)
	}
	return l.Load.validate()
}

// MaxGroups is the largest number of message groups of a load.
const MaxGroups = 10_000_000

// groupName returns the name of a message group, which has the same length for all.
func groupName(n int) string { return fmt.Sprintf("bench-%07d", n) }

// LiteName returns the name of the lite topic n of a load.
func LiteName(n int) string { return groupName(n) }

// Send sends messages until the load's limit or the end of ctx. The error is
// about the load or the topic; what goes wrong later is counted in the result.
func (t *Target) Send(ctx context.Context, l SendLoad) (Result, error) {
	if err := l.validate(); err != nil {
		return Result{}, err
	}
	queues, err := t.queues(ctx, l.Topic, rmqpb.Permission_WRITE)
	if err != nil {
		return Result{}, err
	}
	sessions := make([]*client.Session, 0, len(t.conns))
	for _, c := range t.conns {
		sessions = append(sessions, c.StartProducer(ctx, l.Topic))
	}
	defer closeAll(sessions)

	meters, workers := make([]*meter, l.Concurrency), make([]worker, l.Concurrency)
	lite := new(atomic.Int64)
	for i := range workers {
		s := &sender{
			conn: t.conn(i), ids: t.ids, meter: newMeter(), size: l.Size, stamp: l.stamp,
			results: results{entries: 2, status: 1},
			groups:  l.Groups,
			whole:   l.OneResult,
		}
		if client.MessageType(queues[0]) == rmqpb.MessageType_LITE {
			s.groups, s.lite = max(l.Lites, 1), lite
		}
		if !l.DeliverFrom.IsZero() {
			s.due = func(message int) time.Time {
				return l.DeliverFrom.Add(l.DeliverOver * time.Duration(i*l.Batch+message) / time.Duration(l.Concurrency*l.Batch))
			}
		}
		if l.Groups > 0 { // each worker begins elsewhere
			s.group = i * l.Groups / l.Concurrency
		}
		s.message = template(t.conn(i), l, client.MessageType(queues[0]), i)
		if err := s.build(l.Batch); err != nil {
			return Result{}, err
		}
		meters[i], workers[i] = s.meter, s
	}
	return drive(ctx, l.Load, l.Batch, false, meters, workers), nil
}

func closeAll(sessions []*client.Session) {
	for _, s := range sessions {
		s.Close()
	}
}

// template returns a message without id and body.
func template(conn *client.Conn, l SendLoad, kind rmqpb.MessageType, worker int) *rmqpb.Message {
	system := &rmqpb.SystemProperties{
		MessageType:   kind,
		BodyEncoding:  rmqpb.Encoding_IDENTITY,
		BornTimestamp: timestamppb.Now(),
		BornHost:      client.Host(),
	}
	if l.Tag != "" {
		system.Tag = &l.Tag
	}
	if kind == rmqpb.MessageType_FIFO {
		group := groupName(worker)
		system.MessageGroup = &group
	}
	if kind == rmqpb.MessageType_LITE {
		lite := LiteName(0)
		system.LiteTopic = &lite
	}
	return &rmqpb.Message{Topic: conn.Resource(l.Topic), SystemProperties: system, UserProperties: l.Properties}
}

// sender sends one request again and again, with new message ids in it.
type sender struct {
	conn    *client.Conn
	ids     *client.MessageIDs
	meter   *meter
	message *rmqpb.Message
	size    int
	stamp   *stamp
	results results
	whole   bool // one result stands for all

	request request
	idAt    []int // where the ids are in the request
	bodyAt  []int // where the bodies are
	endAt   []int // where the messages end
	groupAt []int // where the message groups are, if they change
	groups  int   // how many there are; 0: they do not change
	group   int   // of the next request
	// lite counts the requests of all senders to a LITE topic: its lite topics have
	// requests in turn.
	lite *atomic.Int64
	due  func(message int) time.Time // when a message of a request is to be delivered; nil: at once
}

// build encodes a request of n messages and finds what changes in it.
func (s *sender) build(n int) error {
	s.request, s.idAt, s.bodyAt, s.endAt, s.groupAt = nil, nil, nil, nil, nil
	for i := range n {
		message := proto.CloneOf(s.message)
		if s.due != nil {
			message.SystemProperties.DeliveryTimestamp = timestamppb.New(s.due(i))
		}
		message.SystemProperties.MessageId = s.ids.Next()
		message.Body = random(s.size)
		encoded, err := proto.Marshal(&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message}})
		if err != nil {
			return err
		}
		// The body is encoded last; the id is found nowhere else.
		s.idAt = append(s.idAt, len(s.request)+bytes.Index(encoded, []byte(message.SystemProperties.MessageId)))
		group := message.SystemProperties.GetMessageGroup() + message.SystemProperties.GetLiteTopic() // one of them
		if s.groups > 0 && group != "" {
			s.groupAt = append(s.groupAt, len(s.request)+bytes.Index(encoded, []byte(group)))
		}
		s.request = append(s.request, encoded...)
		s.bodyAt = append(s.bodyAt, len(s.request)-s.size)
		s.endAt = append(s.endAt, len(s.request))
	}
	return nil
}

func (s *sender) step(ctx context.Context, n int, due time.Time) (int, bool, error) {
	switch {
	case s.lite != nil:
		s.group = int((s.lite.Add(1) - 1) % int64(s.groups))
	case s.groups > 0:
		s.group = (s.group + 1) % s.groups
	}
	for i := range n {
		if len(s.groupAt) > 0 {
			copy(s.request[s.groupAt[i]:], groupName(s.group))
		}
		s.ids.Put(s.request[s.idAt[i]:])
		if s.stamp != nil {
			s.stamp.put(s.request[s.bodyAt[i]:], due)
		}
	}
	s.meter.requests++
	// Repeated fields follow each other, so a part of the request is a request.
	err := call(ctx, s.conn, rmqpb.MessagingService_SendMessage_FullMethodName, s.request[:s.endAt[n-1]], &s.results)
	if err != nil {
		// gRPC may still read the bytes of the call that failed.
		s.request = bytes.Clone(s.request)
		return n, true, err
	}
	record(s.meter.latency, time.Since(due))
	good := s.count(n)
	s.meter.done(good, good*s.size)
	if good == 0 {
		return n, pause(ctx, afterError), nil
	}
	return n, true, nil
}

// count adds the outcome of a request with n messages to the meter and returns how many
// were stored.
func (s *sender) count(n int) int {
	if s.whole && len(s.results.codes) == 1 {
		s.results.codes = append(s.results.codes, slices.Repeat(s.results.codes, n-1)...)
	}
	return s.results.count(s.meter, n)
}

func (s *sender) finish(context.Context) error { return nil }

// stamp marks the messages of one load with the time they were sent at.
type stamp struct {
	run   [8]byte
	start time.Time
}

// stampSize is the smallest body that holds a stamp.
const stampSize = 16

func newStamp() *stamp {
	s := &stamp{start: time.Now()}
	copy(s.run[:], random(len(s.run)))
	return s
}

func (s *stamp) put(body []byte, at time.Time) {
	copy(body, s.run[:])
	binary.BigEndian.PutUint64(body[len(s.run):], uint64(at.Sub(s.start)))
}

// age returns how long ago the message was sent; false when it is of another load.
func (s *stamp) age(body []byte) (time.Duration, bool) {
	if len(body) < stampSize || !bytes.Equal(body[:len(s.run)], s.run[:]) {
		return 0, false
	}
	return time.Since(s.start) - time.Duration(binary.BigEndian.Uint64(body[len(s.run):])), true
}
