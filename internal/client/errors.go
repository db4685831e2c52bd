package client

import (
	"fmt"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// StatusError is an answer of the server that is not OK.
type StatusError struct {
	Code    rmqpb.Code
	Message string
}

// Error names the code and repeats the server's text.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s (%d): %s", e.Code, int32(e.Code), e.Message)
}

// Check returns nil when status is OK, else a *StatusError.
func Check(status *rmqpb.Status) error {
	if status.GetCode() == rmqpb.Code_OK {
		return nil
	}
	message := status.GetMessage()
	if status == nil {
		message = "the server answered without a status"
	}
	return &StatusError{Code: status.GetCode(), Message: message}
}
