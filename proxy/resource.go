package proxy

import (
	"context"
	"fmt"
	"strings"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// retryPrefix starts the names of the retry topics of other RocketMQ servers.
// Here a message is delivered again from where it is, so there are none.
const retryPrefix = "%RETRY%"

// ensureTopic returns the topic that r names for the client, made first where
// the router does that. The errors match mq.ErrIllegalTopic, mq.ErrTopicNotFound.
func (s *Server) ensureTopic(ctx context.Context, c client, r *rmqpb.Resource) (*mq.Topic, error) {
	name := c.resource(r)
	if err := validateTopic(name); err != nil {
		return nil, err
	}
	if strings.HasPrefix(name.Name, retryPrefix) {
		return nil, fmt.Errorf("%w: %q: this server has no retry topics", mq.ErrTopicNotFound, mq.Shorten(name.String()))
	}
	return s.router.EnsureTopic(ctx, name)
}

// ensureGroup returns the consumer group that r names for the client, made first
// where the router does that. The errors match mq.ErrIllegalGroup,
// mq.ErrGroupNotFound.
func (s *Server) ensureGroup(ctx context.Context, c client, r *rmqpb.Resource) (*mq.Group, error) {
	name := c.resource(r)
	if err := validateGroup(name); err != nil {
		return nil, err
	}
	return s.router.EnsureGroup(ctx, name)
}

func validateTopic(name mq.Resource) error {
	if err := mq.ValidateNamespace(name.Namespace); err != nil {
		return err
	}
	return mq.ValidateTopic(name.Name)
}

func validateGroup(name mq.Resource) error {
	if err := mq.ValidateNamespace(name.Namespace); err != nil {
		return err
	}
	return mq.ValidateGroup(name.Name)
}
