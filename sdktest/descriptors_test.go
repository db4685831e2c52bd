package sdktest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	sdkpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// descriptorImage holds the server's protocol as `make generate` compiled it. The
// generated code cannot be linked in here: it registers the SDK's names.
const descriptorImage = "../proto/descriptors.binpb"

const protocolPackage protoreflect.FullName = "apache.rocketmq.v2"

// newerThanSDK lists what the server's protocol has and that SDK has not; a name
// includes what is inside it. A client that does not know these never sends them,
// and skips them when it gets them.
var newerThanSDK = []protoreflect.FullName{
	// Labels of a client, for operators.
	"Settings.client_properties", "Settings.ClientPropertiesEntry", "Code.INVALID_CLIENT_PROPERTIES",
	// The admin service, of which the SDK has ChangeLogLevel only.
	"Admin.AdminSendMessage", "AdminSendMessageRequest", "AdminSendMessageResponse",
	"Admin.DeleteSubscription", "DeleteSubscriptionRequest", "DeleteSubscriptionResponse",
	"Admin.DescribeGroupAccumulation", "DescribeGroupAccumulationRequest", "DescribeGroupAccumulationResponse",
	"Admin.DescribeSubscription", "DescribeSubscriptionRequest", "DescribeSubscriptionResponse",
	"Admin.DescribeTopicStatus", "DescribeTopicStatusRequest", "DescribeTopicStatusResponse",
	"Admin.GetConsumerRunningInfo", "GetConsumerRunningInfoRequest", "GetConsumerRunningInfoResponse",
	"Admin.GetProxyRuntimeStats", "GetProxyRuntimeStatsRequest", "GetProxyRuntimeStatsResponse",
	"Admin.GetTopicRoute", "GetTopicRouteRequest", "GetTopicRouteResponse",
	"Admin.ListConsumerConnection", "ListConsumerConnectionRequest", "ListConsumerConnectionResponse",
	"Admin.ListSubscription", "ListSubscriptionRequest", "ListSubscriptionResponse",
	"Admin.PrintThreadStackTrace", "PrintThreadStackTraceRequest", "PrintThreadStackTraceResponse",
	"Admin.QueryMessage", "ListMessageRequest", "ListMessageResponse",
	"Admin.QueryTimeSpan", "QueryTimeSpanRequest", "QueryTimeSpanResponse",
	"Admin.ResetGroupOffset", "ResetGroupOffsetRequest", "ResetGroupOffsetResponse",
	"Admin.VerifyMessage", "VerifyMessageRequest", "VerifyMessageResponse",
	// What the admin messages are made of.
	"ClientInfo", "ConsumeStatus", "ConsumerRunningInfo", "MessageModel", "MessageQueueItem",
	"ProcessQueueInfo", "SubscriptionInfo",
}

func TestProtocolEqualsTheOneOfTheOfficialSDK(t *testing.T) {
	server, sdk := facts{}, facts{}
	for _, file := range serverFiles(t) {
		server.addFile(file)
	}
	for _, file := range []protoreflect.FileDescriptor{
		sdkpb.File_apache_rocketmq_v2_definition_proto,
		sdkpb.File_apache_rocketmq_v2_service_proto,
		sdkpb.File_apache_rocketmq_v2_admin_proto,
	} {
		sdk.addFile(file)
	}
	require.Greater(t, len(sdk), 400, "the SDK's descriptors look incomplete")

	for _, name := range slices.Sorted(maps.Keys(sdk)) {
		if sdk[name] != server[name] {
			t.Errorf("%s: the SDK has %q, the server %q", name, sdk[name], server[name])
		}
		delete(server, name)
	}
	serverOnly := outermost(server)
	for _, name := range serverOnly {
		if short := name[len(protocolPackage)+1:]; !slices.Contains(newerThanSDK, short) {
			t.Errorf("%s: only the server has it, and newerThanSDK does not list it", name)
		}
	}
	for _, short := range newerThanSDK {
		name := protocolPackage + "." + short
		if !slices.Contains(serverOnly, name) {
			t.Errorf("%s: newerThanSDK lists it, but it is no difference", name)
		}
	}
}

// outermost returns the names in f, sorted, that are not inside another of them.
func outermost(f facts) []protoreflect.FullName {
	var names []protoreflect.FullName
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if _, nested := f[name.Parent()]; !nested {
			names = append(names, name)
		}
	}
	return names
}

// serverFiles returns the files of the protocol from the descriptor image.
func serverFiles(t *testing.T) []protoreflect.FileDescriptor {
	t.Helper()
	image, err := os.ReadFile(descriptorImage)
	require.NoError(t, err)
	var set descriptorpb.FileDescriptorSet
	require.NoError(t, proto.Unmarshal(image, &set))
	registry, err := protodesc.NewFiles(&set)
	require.NoError(t, err)

	var files []protoreflect.FileDescriptor
	registry.RangeFilesByPackage(protocolPackage, func(file protoreflect.FileDescriptor) bool {
		files = append(files, file)
		return true
	})
	require.NotEmpty(t, files)
	return files
}

// facts holds what the wire and the JSON form depend on, as text, by full name.
type facts map[protoreflect.FullName]string

func (f facts) addFile(file protoreflect.FileDescriptor) {
	f.addMessages(file.Messages())
	f.addEnums(file.Enums())
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		f[service.FullName()] = "service"
		for j := range service.Methods().Len() {
			m := service.Methods().Get(j)
			f[m.FullName()] = fmt.Sprintf("method(%s, stream %t) returns (%s, stream %t)",
				m.Input().FullName(), m.IsStreamingClient(), m.Output().FullName(), m.IsStreamingServer())
		}
	}
}

func (f facts) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		f[message.FullName()] = fmt.Sprintf("message, map entry %t", message.IsMapEntry())
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			f[field.FullName()] = fieldFacts(field)
		}
		for j := range message.Oneofs().Len() {
			if oneof := message.Oneofs().Get(j); !oneof.IsSynthetic() { // else the field says it
				f[oneof.FullName()] = "oneof"
			}
		}
		f.addMessages(message.Messages())
		f.addEnums(message.Enums())
	}
}

func (f facts) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		f[enum.FullName()] = fmt.Sprintf("enum, closed %t", enum.IsClosed())
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			// The full name of a value lacks the enum's name; qualify it.
			f[enum.FullName().Append(value.Name())] = fmt.Sprintf("value %d", value.Number())
		}
	}
}

func fieldFacts(field protoreflect.FieldDescriptor) string {
	typeName := field.Kind().String()
	switch {
	case field.Message() != nil:
		typeName += " " + string(field.Message().FullName())
	case field.Enum() != nil:
		typeName += " " + string(field.Enum().FullName())
	}
	oneof := "none"
	if in := field.ContainingOneof(); in != nil {
		oneof = string(in.Name())
	}
	return fmt.Sprintf("field %d, %s %s, json %s, presence %t, optional %t, packed %t, oneof %s",
		field.Number(), field.Cardinality(), typeName, field.JSONName(), field.HasPresence(),
		field.HasOptionalKeyword(), field.IsPacked(), oneof)
}
