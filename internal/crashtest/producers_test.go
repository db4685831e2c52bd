package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// A producer sends messages of one type, single ones and, where they can be told apart,
// batches. What was not answered it sends again, as SDKs do, or drops. It recalls delayed
// messages, and ends transactions.
type producer struct {
	name    string
	topic   *rmqpb.Resource
	kind    rmqpb.MessageType
	server  way
	history *history
	rng     *rand.Rand
	next    int
	kept    struct { // a send that was answered OK, to be repeated later
		req *rmqpb.SendMessageRequest
		sn  *sent
		at  time.Time
	}
}

// lites are the lite topics that there are, priorities how many priorities.
var lites = []string{"one", "two", "three"}

const priorities = 4

// repeatAfter is how long after it was answered a send is repeated, so that the server has
// been killed in between, more often than not.
const repeatAfter = 700 * time.Millisecond

// waits reports whether the producer's messages wait for something.
func (p *producer) waits() bool {
	return p.kind == rmqpb.MessageType_DELAY || p.kind == rmqpb.MessageType_TRANSACTION
}

// repeats reports whether the producer sends again what was not answered. In a deployment a
// send that is repeated may be stored on another shard as well, and a message that waits
// would then have to be ended or recalled twice.
func (p *producer) repeats() bool { return !p.history.deployed || !p.waits() }

func (p *producer) run(ctx context.Context) {
	var recalls sync.WaitGroup
	defer recalls.Wait()
	for ctx.Err() == nil {
		req, sn := p.request()
		resp := p.send(ctx, req, sn)
		if resp != nil && p.waits() {
			p.decide(ctx, sn, resp.GetEntries()[0], &recalls)
		}
		switch {
		case p.kept.sn != nil && time.Since(p.kept.at) > repeatAfter:
			p.send(ctx, p.kept.req, p.kept.sn) // as if its answer had been lost
			p.kept.sn = nil
		case p.kept.sn == nil && resp != nil && p.repeats():
			p.kept.req, p.kept.sn, p.kept.at = req, sn, time.Now()
		}
		if !pause(ctx, time.Duration(p.rng.IntN(8))*time.Millisecond) {
			return
		}
	}
}

// request makes the next request, and notes it.
func (p *producer) request() (*rmqpb.SendMessageRequest, *sent) {
	n := 1
	if p.rng.IntN(4) == 0 && !p.waits() {
		n = 2 + p.rng.IntN(7)
	}
	tag := []string{"red", "green", "blue"}[p.rng.IntN(3)]
	system := &rmqpb.SystemProperties{
		Tag: &tag, BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: p.kind, BornTimestamp: timestamppb.Now(), BornHost: "crashtest",
	}
	var w *wait
	switch p.kind {
	case rmqpb.MessageType_DELAY:
		w = &wait{due: time.Now().Add(time.Duration(p.rng.IntN(3000)) * time.Millisecond)}
		system.DeliveryTimestamp = timestamppb.New(w.due)
	case rmqpb.MessageType_TRANSACTION:
		w = &wait{half: true}
		system.OrphanedTransactionRecoveryDuration = durationpb.New(time.Second)
	case rmqpb.MessageType_PRIORITY:
		priority := p.rng.Int32N(priorities + 2)
		system.Priority = &priority
	case rmqpb.MessageType_LITE:
		system.LiteTopic = &lites[p.rng.IntN(len(lites))]
	}
	req := &rmqpb.SendMessageRequest{}
	var ids []string
	for range n {
		p.next++
		id := fmt.Sprintf("%s-%d", p.name, p.next)
		ids = append(ids, id)
		of := &rmqpb.SystemProperties{
			Tag: system.Tag, BodyEncoding: system.BodyEncoding, MessageType: system.MessageType, BornTimestamp: system.BornTimestamp,
			BornHost: system.BornHost, DeliveryTimestamp: system.DeliveryTimestamp, Priority: system.Priority, LiteTopic: system.LiteTopic,
			OrphanedTransactionRecoveryDuration: system.OrphanedTransactionRecoveryDuration, MessageId: id,
		}
		req.Messages = append(req.Messages, &rmqpb.Message{Topic: p.topic, Body: []byte(body(id)), SystemProperties: of})
	}
	return req, p.history.beginSend(tag, ids, w)
}

// send sends a request until it is answered OK, or it gives up.
func (p *producer) send(ctx context.Context, req *rmqpb.SendMessageRequest, sn *sent) *rmqpb.SendMessageResponse {
	for failures := 0; ; failures++ {
		conn, err := p.server.connection(ctx)
		if err != nil {
			return nil
		}
		callCtx, cancel := call(ctx, p.name, 5*time.Second)
		try := span{from: time.Now()}
		resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(callCtx, req)
		cancel()
		try.to = time.Now()
		p.history.tried(sn, try)
		p.history.answeredWith(resp.GetStatus(), err)
		if err == nil && resp.GetStatus().GetCode() == rmqpb.Code_OK && len(resp.GetEntries()) == len(req.GetMessages()) {
			entry := resp.GetEntries()[0]
			p.history.endSend(sn, answer{entry.GetOffset(), entry.GetRecallHandle() + entry.GetTransactionId()}, failures > 0)
			return resp
		}
		if !pause(ctx, backoff(failures)) || !p.repeats() || p.rng.IntN(3) == 0 {
			return nil
		}
	}
}

// decide does what there is to do about a message that waits: it is recalled or not, and
// its transaction is ended, or left to a question.
func (p *producer) decide(ctx context.Context, sn *sent, entry *rmqpb.SendResultEntry, recalls *sync.WaitGroup) {
	id := sn.ids[0]
	n := p.rng.IntN(100)
	switch {
	case p.kind == rmqpb.MessageType_DELAY && n < 20:
		p.recall(ctx, id, sn, entry.GetRecallHandle())
	case p.kind == rmqpb.MessageType_DELAY && n < 40:
		recalls.Go(func() {
			if pause(ctx, time.Until(sn.due)-20*time.Millisecond) { // close to its time
				p.recall(ctx, id, sn, entry.GetRecallHandle())
			}
		})
	case p.kind == rmqpb.MessageType_TRANSACTION && n < 75:
		e := ending{p.server, p.history, p.topic, p.name}
		e.run(ctx, id, entry.GetTransactionId(), sn.wait, n < 50)
	}
}

// recall asks for a message back until that is answered.
func (p *producer) recall(ctx context.Context, id string, sn *sent, handle string) {
	p.history.ask(&sn.recall)
	p.retry(ctx, func(ctx context.Context, conn *grpc.ClientConn) bool {
		resp, err := rmqpb.NewMessagingServiceClient(conn).RecallMessage(ctx, &rmqpb.RecallMessageRequest{Topic: p.topic, RecallHandle: handle})
		switch code := resp.GetStatus().GetCode(); {
		case err != nil:
			return false
		case code == rmqpb.Code_OK, code == rmqpb.Code_BAD_REQUEST:
			p.history.answer(id, &sn.recall, nil, code == rmqpb.Code_OK)
			return true
		}
		return false
	})
}

func (p *producer) retry(ctx context.Context, fn func(ctx context.Context, conn *grpc.ClientConn) bool) {
	retry(ctx, p.server, p.name, fn)
}

// retry calls fn until it reports an answer.
func retry(ctx context.Context, s way, client string, fn func(ctx context.Context, conn *grpc.ClientConn) bool) {
	for failures := 0; ; failures++ {
		conn, err := s.connection(ctx)
		if err != nil {
			return
		}
		callCtx, cancel := call(ctx, client, 5*time.Second)
		answered := fn(callCtx, conn)
		cancel()
		if answered || !pause(ctx, backoff(failures)) {
			return
		}
	}
}

// An ending ends transactions.
type ending struct {
	server  way
	history *history
	topic   *rmqpb.Resource
	client  string
}

// run ends one, and asks until that is answered.
func (e ending) run(ctx context.Context, id, transaction string, w *wait, commit bool) {
	p, opposite, resolution := &w.rollback, &w.commit, rmqpb.TransactionResolution_ROLLBACK
	if commit {
		p, opposite, resolution = &w.commit, &w.rollback, rmqpb.TransactionResolution_COMMIT
	}
	e.history.ask(p)
	retry(ctx, e.server, e.client, func(ctx context.Context, conn *grpc.ClientConn) bool {
		resp, err := rmqpb.NewMessagingServiceClient(conn).EndTransaction(ctx, &rmqpb.EndTransactionRequest{
			Topic: e.topic, MessageId: id, TransactionId: transaction, Resolution: resolution,
		})
		switch code := resp.GetStatus().GetCode(); {
		case err != nil:
			return false
		case code == rmqpb.Code_OK, code == rmqpb.Code_INVALID_TRANSACTION_ID:
			e.history.answer(id, p, opposite, code == rmqpb.Code_OK)
			return true
		}
		return false
	})
}

// listen is a producer that is asked about half messages, and answers most questions.
func (p *producer) listen(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := p.server.connection(ctx)
		if err != nil {
			return
		}
		p.questions(ctx, conn)
		if !pause(ctx, 20*time.Millisecond) {
			return
		}
	}
}

// questions answers what comes over one stream.
func (p *producer) questions(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := call(ctx, p.name, time.Hour)
	defer cancel()
	stream, err := rmqpb.NewMessagingServiceClient(conn).Telemetry(ctx)
	if err != nil {
		return
	}
	err = stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(),
		PubSub:     &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{Topics: []*rmqpb.Resource{p.topic}}},
	}}})
	for err == nil {
		var command *rmqpb.TelemetryCommand
		if command, err = stream.Recv(); err != nil {
			return
		}
		question := command.GetRecoverOrphanedTransactionCommand()
		if question == nil {
			continue
		}
		id := question.GetMessage().GetSystemProperties().GetMessageId()
		w := p.history.questioned(id, string(question.GetMessage().GetBody()))
		if n := p.rng.IntN(4); n > 0 && w != nil {
			e := ending{p.server, p.history, p.topic, p.name}
			e.run(ctx, id, question.GetTransactionId(), w, n > 1)
		}
	}
}
