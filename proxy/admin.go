package proxy

// The protocol's Admin service
//
// Behaviour: no RPC of it is built; the project has an administration of its
// own. Each answers the status NOT_IMPLEMENTED in a normal response. Only the
// response of ChangeLogLevel has no status: it answers gRPC UNIMPLEMENTED.
// Operators' tools send no client id, so none is asked for.
//
// Codes: NOT_IMPLEMENTED.

import (
	"context"

	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// admin implements the protocol's Admin service.
type admin struct {
	rmqpb.UnimplementedAdminServer
}

func adminNotBuilt(what string) *rmqpb.Status {
	return &rmqpb.Status{Code: rmqpb.Code_NOT_IMPLEMENTED, Message: what + ": not implemented by this server"}
}

func (admin) ChangeLogLevel(context.Context, *rmqpb.ChangeLogLevelRequest) (*rmqpb.ChangeLogLevelResponse, error) {
	return nil, grpcstatus.Error(grpccodes.Unimplemented, "ChangeLogLevel: not implemented by this server")
}

func (admin) DescribeTopicStatus(context.Context, *rmqpb.DescribeTopicStatusRequest) (*rmqpb.DescribeTopicStatusResponse, error) {
	return &rmqpb.DescribeTopicStatusResponse{Status: adminNotBuilt("DescribeTopicStatus")}, nil
}

func (admin) ListSubscription(context.Context, *rmqpb.ListSubscriptionRequest) (*rmqpb.ListSubscriptionResponse, error) {
	return &rmqpb.ListSubscriptionResponse{Status: adminNotBuilt("ListSubscription")}, nil
}

func (admin) DescribeSubscription(context.Context, *rmqpb.DescribeSubscriptionRequest) (*rmqpb.DescribeSubscriptionResponse, error) {
	return &rmqpb.DescribeSubscriptionResponse{Status: adminNotBuilt("DescribeSubscription")}, nil
}

func (admin) DeleteSubscription(context.Context, *rmqpb.DeleteSubscriptionRequest) (*rmqpb.DeleteSubscriptionResponse, error) {
	return &rmqpb.DeleteSubscriptionResponse{Status: adminNotBuilt("DeleteSubscription")}, nil
}

func (admin) DescribeGroupAccumulation(context.Context, *rmqpb.DescribeGroupAccumulationRequest) (*rmqpb.DescribeGroupAccumulationResponse, error) {
	return &rmqpb.DescribeGroupAccumulationResponse{Status: adminNotBuilt("DescribeGroupAccumulation")}, nil
}

func (admin) ListConsumerConnection(context.Context, *rmqpb.ListConsumerConnectionRequest) (*rmqpb.ListConsumerConnectionResponse, error) {
	return &rmqpb.ListConsumerConnectionResponse{Status: adminNotBuilt("ListConsumerConnection")}, nil
}

func (admin) ResetGroupOffset(context.Context, *rmqpb.ResetGroupOffsetRequest) (*rmqpb.ResetGroupOffsetResponse, error) {
	return &rmqpb.ResetGroupOffsetResponse{Status: adminNotBuilt("ResetGroupOffset")}, nil
}

func (admin) QueryMessage(context.Context, *rmqpb.ListMessageRequest) (*rmqpb.ListMessageResponse, error) {
	return &rmqpb.ListMessageResponse{Status: adminNotBuilt("QueryMessage")}, nil
}

func (admin) PrintThreadStackTrace(context.Context, *rmqpb.PrintThreadStackTraceRequest) (*rmqpb.PrintThreadStackTraceResponse, error) {
	return &rmqpb.PrintThreadStackTraceResponse{Status: adminNotBuilt("PrintThreadStackTrace")}, nil
}

func (admin) VerifyMessage(context.Context, *rmqpb.VerifyMessageRequest) (*rmqpb.VerifyMessageResponse, error) {
	return &rmqpb.VerifyMessageResponse{Status: adminNotBuilt("VerifyMessage")}, nil
}

func (admin) AdminSendMessage(context.Context, *rmqpb.AdminSendMessageRequest) (*rmqpb.AdminSendMessageResponse, error) {
	return &rmqpb.AdminSendMessageResponse{Status: adminNotBuilt("AdminSendMessage")}, nil
}

func (admin) GetConsumerRunningInfo(context.Context, *rmqpb.GetConsumerRunningInfoRequest) (*rmqpb.GetConsumerRunningInfoResponse, error) {
	return &rmqpb.GetConsumerRunningInfoResponse{Status: adminNotBuilt("GetConsumerRunningInfo")}, nil
}

func (admin) GetTopicRoute(context.Context, *rmqpb.GetTopicRouteRequest) (*rmqpb.GetTopicRouteResponse, error) {
	return &rmqpb.GetTopicRouteResponse{Status: adminNotBuilt("GetTopicRoute")}, nil
}

func (admin) QueryTimeSpan(context.Context, *rmqpb.QueryTimeSpanRequest) (*rmqpb.QueryTimeSpanResponse, error) {
	return &rmqpb.QueryTimeSpanResponse{Status: adminNotBuilt("QueryTimeSpan")}, nil
}

func (admin) GetProxyRuntimeStats(context.Context, *rmqpb.GetProxyRuntimeStatsRequest) (*rmqpb.GetProxyRuntimeStatsResponse, error) {
	return &rmqpb.GetProxyRuntimeStatsResponse{Status: adminNotBuilt("GetProxyRuntimeStats")}, nil
}
