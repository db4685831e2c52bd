package client

import (
	"context"
	"fmt"
	"net"
	"strconv"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// Resource returns the protocol's form of a topic or group in the connection's
// namespace.
func (c *Conn) Resource(name string) *rmqpb.Resource {
	return &rmqpb.Resource{ResourceNamespace: c.opts.Namespace, Name: name}
}

// Endpoints returns the protocol's form of the address the connection dials.
func (c *Conn) Endpoints() *rmqpb.Endpoints {
	// Dial has checked both.
	host, port, _ := net.SplitHostPort(c.opts.Endpoint)
	number, _ := strconv.ParseInt(port, 10, 32)
	scheme := rmqpb.AddressScheme_DOMAIN_NAME
	if ip := net.ParseIP(host); ip != nil {
		scheme = rmqpb.AddressScheme_IPv6
		if ip.To4() != nil {
			scheme = rmqpb.AddressScheme_IPv4
		}
	}
	return &rmqpb.Endpoints{Scheme: scheme, Addresses: []*rmqpb.Address{{Host: host, Port: int32(number)}}}
}

// Queues asks for the route of topic and returns those of its queues on masters
// that permit what want names, READ or WRITE. There is at least one, or an error.
func (c *Conn) Queues(ctx context.Context, topic string, want rmqpb.Permission) ([]*rmqpb.MessageQueue, error) {
	response, err := rmqpb.NewMessagingServiceClient(c).QueryRoute(ctx,
		&rmqpb.QueryRouteRequest{Topic: c.Resource(topic), Endpoints: c.Endpoints()})
	if err != nil {
		return nil, err
	}
	if err := Check(response.GetStatus()); err != nil {
		return nil, err
	}
	var queues []*rmqpb.MessageQueue
	for _, q := range response.GetMessageQueues() {
		p := q.GetPermission()
		if q.GetBroker().GetId() == 0 && (p == want || p == rmqpb.Permission_READ_WRITE) {
			queues = append(queues, q)
		}
	}
	if len(queues) == 0 {
		return nil, fmt.Errorf("topic %q has no queue with permission %s", topic, want)
	}
	return queues, nil
}

// MessageType returns the type of the messages that a queue's topic takes, the
// first one when there are several.
func MessageType(q *rmqpb.MessageQueue) rmqpb.MessageType {
	if types := q.GetAcceptMessageTypes(); len(types) > 0 && types[0] != rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED {
		return types[0]
	}
	return rmqpb.MessageType_NORMAL
}
