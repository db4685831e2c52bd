package proxy

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/receipt"
)

// The benchmarks call the handlers directly, on a store in memory: what gRPC and
// the disk cost is not in them. An iteration is one message of 1 KiB.

func BenchmarkSendMessage(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			s := newTestServer(b)
			s.topic(b, "t")
			req := &rmqpb.SendMessageRequest{}
			for i := range batch {
				req.Messages = append(req.Messages, message("t", fmt.Sprintf("01%032d", i), strings.Repeat("x", 1024)))
			}
			wire, err := proto.Marshal(req)
			if err != nil {
				b.Fatal(err)
			}
			ctx := as(b, "sender")
			b.ReportAllocs()
			sent := 0
			for b.Loop() {
				req := &rmqpb.SendMessageRequest{}
				if err := proto.Unmarshal(wire, req); err != nil {
					b.Fatal(err)
				}
				number(req, &sent)
				if res, err := s.SendMessage(ctx, req); err != nil || res.GetStatus().GetCode() != rmqpb.Code_OK {
					b.Fatal(res, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/msg")
		})
	}
}

// number gives messages ids that none had before: one that comes again is not stored.
func number(req *rmqpb.SendMessageRequest, sent *int) *rmqpb.SendMessageRequest {
	for _, m := range req.GetMessages() {
		*sent++
		m.SystemProperties.MessageId = strconv.Itoa(*sent)
	}
	return req
}

// discard is a stream that encodes nothing and keeps nothing but receipt handles.
type discard struct {
	grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]
	ctx    context.Context
	frames int
}

func (d *discard) Context() context.Context                 { return d.ctx }
func (d *discard) Send(*rmqpb.ReceiveMessageResponse) error { return nil }
func (d *discard) SendMsg(any) error {
	d.frames++
	return nil
}

func BenchmarkReceiveMessage(b *testing.B) {
	s := newTestServer(b)
	s.topic(b, "t")
	c := s.consumer("t", "g")
	req := &rmqpb.SendMessageRequest{}
	for i := range 32 {
		req.Messages = append(req.Messages, message("t", fmt.Sprintf("01%032d", i), strings.Repeat("x", 1024)))
	}
	sent, received := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		s.send(b, number(proto.Clone(req).(*rmqpb.SendMessageRequest), &sent).GetMessages()...)
		b.StartTimer()
		d := &discard{ctx: c.ctx(b)}
		if err := s.ReceiveMessage(c.push(32, 0), d); err != nil {
			b.Fatal(err)
		}
		received += d.frames
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(received, 1)), "ns/msg")
}

func BenchmarkAckMessage(b *testing.B) {
	for _, entries := range []int{1, 32} {
		b.Run(fmt.Sprint("entries=", entries), func(b *testing.B) {
			s := newTestServer(b)
			s.topic(b, "t")
			ack := &rmqpb.AckMessageRequest{Group: named("g"), Topic: named("t")}
			var leased []string
			sent := 0
			for b.Loop() {
				if len(leased) < entries {
					b.StopTimer()
					for range 32 {
						sent++
						s.send(b, message("t", strconv.Itoa(sent), "x"))
					}
					for _, d := range s.leased(b, "t", "g", 32, 0) {
						leased = append(leased, receipt.Encode(d.Lease))
					}
					b.StartTimer()
				}
				ack.Entries = ack.Entries[:0]
				for _, handle := range leased[:entries] {
					ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{MessageId: "1", ReceiptHandle: handle})
				}
				leased = leased[entries:]
				if res, err := s.AckMessage(as(b, "c"), ack); err != nil || res.GetStatus().GetCode() != rmqpb.Code_OK {
					b.Fatal(res, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*entries), "ns/msg")
		})
	}
}
