package tiererr

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/mq"
)

// released is what peers of every version go by: rows are added, never changed.
var released = map[error]int32{
	mq.ErrInvalid: 1, mq.ErrIllegalTopic: 2, mq.ErrIllegalGroup: 3, mq.ErrTopicNotFound: 4, mq.ErrTopicExists: 5,
	mq.ErrGroupNotFound: 6, mq.ErrGroupExists: 7, mq.ErrQueueNotFound: 8, mq.ErrShardNotFound: 9, mq.ErrForbidden: 10,
	mq.ErrInvalidReceipt: 11, mq.ErrLeaseEnded: 12, mq.ErrLeaseSuperseded: 13, mq.ErrIllegalOffset: 14, mq.ErrOffsetNotFound: 15,
	mq.ErrIllegalFilter: 16, mq.ErrInvalidHandle: 17, mq.ErrNotPending: 18, mq.ErrUnknownTransaction: 19, mq.ErrTransactionEnded: 20,
	mq.ErrIllegalLiteTopic: 21, mq.ErrLiteTopicQuota: 22, mq.ErrLiteSubscriptionQuota: 23, mq.ErrTooLarge: 24, mq.ErrBusy: 25,
	mq.ErrTooManyInFlight: 26, mq.ErrStoreFull: 27, mq.ErrStopped: 28, mq.ErrNotImplemented: 29, mq.ErrUnavailable: 30, mq.ErrOutcomeUnknown: 31,
	mq.ErrStale: 32, mq.ErrNotServing: 33,
	context.Canceled: 1001, context.DeadlineExceeded: 1002,
}

func TestNumbersOfErrorsNeverChange(t *testing.T) {
	table := map[error]int32{}
	for _, k := range kinds {
		table[k.sentinel] = int32(k.kind)
		require.NotContains(t, []codes.Code{codes.OK, codes.Unknown, codes.Internal}, k.code, "%v", k.sentinel)
	}
	require.Equal(t, released, table)
	require.Len(t, routerpb.ErrorKind_name, len(kinds)+1, "kinds without a row")
	require.True(t, slices.IsSortedFunc(kinds, func(a, b struct {
		kind     routerpb.ErrorKind
		sentinel error
		code     codes.Code
	},
	) int {
		return int(a.kind - b.kind)
	}))
}

func TestEverySentinelHasANumber(t *testing.T) {
	names := func(file string, find func(ast.Node) string) []string {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		found := map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			if name := find(n); strings.HasPrefix(name, "Err") {
				found[name] = true
			}
			return true
		})
		return slices.Sorted(maps.Keys(found))
	}
	declared := names("../../mq/errors.go", func(n ast.Node) string {
		if v, ok := n.(*ast.ValueSpec); ok {
			return v.Names[0].Name
		}
		return ""
	})
	require.Greater(t, len(declared), 25)
	numbered := names("tiererr.go", func(n ast.Node) string {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "mq" {
				return sel.Sel.Name
			}
		}
		return ""
	})
	require.Equal(t, declared, numbered)
}

// cross returns err as the other side has it, both ways.
func cross(t require.TestingT, err error) []error {
	wire, e := proto.Marshal(Encode(err))
	require.NoError(t, e)
	var inFrame routerpb.Error
	require.NoError(t, proto.Unmarshal(wire, &inFrame))

	st := status.Convert(Status(err)).Proto()
	wire, e = proto.Marshal(st)
	require.NoError(t, e)
	proto.Reset(st)
	require.NoError(t, proto.Unmarshal(wire, st))
	return []error{Decode(&inFrame), FromStatus(status.FromProto(st).Err())}
}

func requireSame(t require.TestingT, want, got error) {
	require.EqualError(t, got, want.Error())
	for _, k := range kinds {
		require.Equal(t, errors.Is(want, k.sentinel), errors.Is(got, k.sentinel), "%v is %v", want, k.sentinel)
	}
	wantInvalid, invalid := errors.AsType[*mq.InvalidError](want)
	gotInvalid, ok := errors.AsType[*mq.InvalidError](got)
	require.Equal(t, invalid, ok)
	require.Equal(t, wantInvalid, gotInvalid)
	wantOffset, outside := errors.AsType[*mq.OffsetError](want)
	gotOffset, ok := errors.AsType[*mq.OffsetError](got)
	require.Equal(t, outside, ok)
	require.Equal(t, wantOffset, gotOffset)
}

func TestErrorsCrossAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-zé ]{0,20}`)
		var err error
		switch rapid.IntRange(0, 3).Draw(t, "what") {
		case 0:
			err = errors.New(word.Draw(t, "text"))
		case 1:
			err = &mq.InvalidError{
				Kind:  rapid.SampledFrom([]error{mq.ErrInvalid, mq.ErrIllegalTopic, mq.ErrIllegalGroup, mq.ErrIllegalLiteTopic}).Draw(t, "kind"),
				Field: word.Draw(t, "field"), Value: word.Draw(t, "value"), Reason: word.Draw(t, "reason"),
			}
		case 2:
			err = &mq.OffsetError{
				Topic: mq.Resource{Namespace: word.Draw(t, "namespace"), Name: word.Draw(t, "name")}, Queue: mq.QueueID(rapid.Int32().Draw(t, "queue")),
				Offset: mq.QueueOffset(rapid.Int64().Draw(t, "offset")), Min: mq.QueueOffset(rapid.Int64().Draw(t, "min")), Next: mq.QueueOffset(rapid.Int64().Draw(t, "next")),
			}
		default:
			err = kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "sentinel")].sentinel
		}
		for range rapid.IntRange(0, 3).Draw(t, "wraps") {
			if rapid.Bool().Draw(t, "two") {
				err = fmt.Errorf("%w: %w", kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "outer")].sentinel, err)
			} else {
				err = fmt.Errorf("%s: %w", word.Draw(t, "where"), err)
			}
		}
		for _, got := range cross(t, err) {
			requireSame(t, err, got)
			for _, again := range cross(t, got) { // a tier passes on what another has told it
				requireSame(t, err, again)
			}
		}
	})
}

func TestASupersededLeaseIsAnEndedOneOnTheOtherSideToo(t *testing.T) {
	for _, got := range cross(t, fmt.Errorf("message 7: %w", mq.ErrLeaseSuperseded)) {
		require.ErrorIs(t, got, mq.ErrLeaseSuperseded)
		require.ErrorIs(t, got, mq.ErrLeaseEnded)
	}
	for _, got := range cross(t, mq.ErrLeaseEnded) {
		require.NotErrorIs(t, got, mq.ErrLeaseSuperseded)
	}
}

func TestNoErrorStaysNoError(t *testing.T) {
	require.Nil(t, Encode(nil))
	require.NoError(t, Decode(nil))
	require.NoError(t, Status(nil))
	require.NoError(t, FromStatus(nil))
}

func TestLongAndBrokenTextsAreCutToWhatCanCross(t *testing.T) {
	long := strings.Repeat("é", 5000) + "\xff"
	err := fmt.Errorf("%s: %w", long, &mq.InvalidError{Kind: mq.ErrInvalid, Field: "f\xff", Value: long, Reason: "r"})
	for _, got := range cross(t, err) {
		require.LessOrEqual(t, len(got.Error()), maxText)
		require.True(t, strings.HasSuffix(got.Error(), "..."))
		in, ok := errors.AsType[*mq.InvalidError](got)
		require.True(t, ok)
		require.Equal(t, "f\uFFFD", in.Field)
		require.LessOrEqual(t, len(in.Value), maxField)
	}
}

func TestKindsOfANewerPeerArePassedOver(t *testing.T) {
	err := Decode(&routerpb.Error{Kinds: []routerpb.ErrorKind{4, 999}, Text: "gone", Invalid: &routerpb.InvalidInput{Kind: 998, Field: "f"}})
	require.EqualError(t, err, "gone")
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.EqualError(t, Decode(&routerpb.Error{Kinds: []routerpb.ErrorKind{999}, Text: "new"}), "new")
}

func TestErrorsOfTheTransportAreToldApart(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.Unavailable: mq.ErrUnavailable, codes.Unimplemented: mq.ErrNotImplemented,
		codes.Canceled: context.Canceled, codes.DeadlineExceeded: context.DeadlineExceeded,
	} {
		err := FromStatus(status.Error(code, "no connection"))
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "no connection")
	}
	refused := status.Error(codes.Unauthenticated, "wrong token")
	require.Equal(t, refused, FromStatus(refused))
	other := errors.New("no status")
	require.Equal(t, other, FromStatus(other))
}

func FuzzDecode(f *testing.F) {
	for _, k := range kinds {
		wire, err := proto.Marshal(Encode(fmt.Errorf("x: %w", k.sentinel)))
		require.NoError(f, err)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var e routerpb.Error
		if proto.Unmarshal(wire, &e) != nil {
			return
		}
		err := Decode(&e)
		again := Encode(err)
		require.True(t, proto.Equal(again, Encode(Decode(again))))
	})
}
