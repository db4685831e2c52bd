package proxy

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// parseGo returns the syntax of one file.
func parseGo(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	return f
}

// selected returns the names that begin with prefix and are taken from package pkg.
func selected(f *ast.File, pkg, prefix string) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, prefix) {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
				found[sel.Sel.Name] = true
			}
		}
		return true
	})
	return found
}

func TestEverySentinelHasACode(t *testing.T) {
	declared := map[string]bool{}
	ast.Inspect(parseGo(t, "../mq/errors.go"), func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Err") {
			declared[v.Names[0].Name] = true
		}
		return true
	})
	require.Greater(t, len(declared), 15)
	mapped := selected(parseGo(t, "status.go"), "mq", "Err")
	require.Equal(t, slices.Sorted(maps.Keys(declared)), slices.Sorted(maps.Keys(mapped)))
}

func TestEveryMappedErrorIsToldWithItsCodeAndText(t *testing.T) {
	s := &Server{logger: slog.New(slog.DiscardHandler)}
	seen := map[error]bool{}
	for _, c := range codes {
		require.False(t, seen[c.err], c.err)
		seen[c.err] = true
		require.NotEmpty(t, rmqpb.Code_name[int32(c.code)])
		st := s.statusOf(t.Context(), fmt.Errorf("topic 7: %w", c.err))
		require.Equal(t, c.code, st.GetCode(), c.err)
		// What stopped a store names files of the server: that is not for clients.
		require.Equal(t, !errors.Is(c.err, mq.ErrStopped), strings.Contains(st.GetMessage(), "topic 7"))
	}
}

func TestUnknownErrorsAreLoggedAndMasked(t *testing.T) {
	var log strings.Builder
	s := &Server{logger: slog.New(slog.NewTextHandler(&log, nil))}
	st := s.statusOf(as(t, "client-7"), errors.New("secret of the house"))
	require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, st.GetCode())
	require.NotContains(t, st.GetMessage(), "secret")
	require.Contains(t, log.String(), "secret of the house")
	require.Contains(t, log.String(), "client-7")
}

func TestRefusalsKeepTheirCodeWhenTheyAreWrapped(t *testing.T) {
	s := &Server{logger: slog.New(slog.DiscardHandler)}
	st := s.statusOf(t.Context(), fmt.Errorf("more: %w", refuse(rmqpb.Code_ILLEGAL_MESSAGE_TAG, "tag %q", "x")))
	require.Equal(t, rmqpb.Code_ILLEGAL_MESSAGE_TAG, st.GetCode())
	require.Equal(t, rmqpb.Code_OK, s.statusOf(t.Context(), nil).GetCode())
}

// Every SDK has an error of its own for these codes.
var familiar = []rmqpb.Code{
	rmqpb.Code_OK, rmqpb.Code_MULTIPLE_RESULTS, rmqpb.Code_BAD_REQUEST, rmqpb.Code_ILLEGAL_ACCESS_POINT,
	rmqpb.Code_ILLEGAL_TOPIC, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, rmqpb.Code_ILLEGAL_MESSAGE_TAG,
	rmqpb.Code_ILLEGAL_MESSAGE_KEY, rmqpb.Code_ILLEGAL_MESSAGE_GROUP, rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY,
	rmqpb.Code_ILLEGAL_MESSAGE_ID, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, rmqpb.Code_ILLEGAL_INVISIBLE_TIME,
	rmqpb.Code_ILLEGAL_DELIVERY_TIME, rmqpb.Code_INVALID_TRANSACTION_ID, rmqpb.Code_INVALID_RECEIPT_HANDLE, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
	rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, rmqpb.Code_MESSAGE_CORRUPTED, rmqpb.Code_CLIENT_ID_REQUIRED,
	rmqpb.Code_ILLEGAL_POLLING_TIME, rmqpb.Code_FORBIDDEN, rmqpb.Code_MESSAGE_NOT_FOUND, rmqpb.Code_TOPIC_NOT_FOUND,
	rmqpb.Code_CONSUMER_GROUP_NOT_FOUND, rmqpb.Code_PAYLOAD_TOO_LARGE, rmqpb.Code_MESSAGE_BODY_TOO_LARGE,
	rmqpb.Code_MESSAGE_BODY_EMPTY, rmqpb.Code_TOO_MANY_REQUESTS, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE,
	rmqpb.Code_INTERNAL_SERVER_ERROR, rmqpb.Code_PROXY_TIMEOUT, rmqpb.Code_UNSUPPORTED,
}

// These are not known to every SDK, and used all the same.
var unfamiliar = map[rmqpb.Code]string{
	rmqpb.Code_ILLEGAL_OFFSET:      "no SDK makes the calls that answer it",
	rmqpb.Code_OFFSET_NOT_FOUND:    "likewise",
	rmqpb.Code_NOT_IMPLEMENTED:     "says what it is; SDKs report it as unsupported, which is right",
	rmqpb.Code_PRECONDITION_FAILED: "only for what administrators do, and for groups that they have bound to another topic",
	// Lite consumers came with these.
	rmqpb.Code_ILLEGAL_LITE_TOPIC:               "lite consumers know it",
	rmqpb.Code_LITE_TOPIC_QUOTA_EXCEEDED:        "likewise",
	rmqpb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED: "likewise",
	rmqpb.Code_REQUEST_TIMEOUT:                  "nobody reads it: the client has given up",
	rmqpb.Code_INTERNAL_ERROR:                   "a bound of comparison, never sent",
}

func TestOnlyCodesThatSDKsKnowAreUsed(t *testing.T) {
	used := map[string]bool{}
	files, err := fs.Glob(os.DirFS("."), "*.go")
	require.NoError(t, err)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			maps.Copy(used, selected(parseGo(t, file), "rmqpb", "Code_"))
		}
	}
	require.Greater(t, len(used), 20)
	for name := range used {
		if name == "Code_name" {
			continue
		}
		number, ok := rmqpb.Code_value[strings.TrimPrefix(name, "Code_")]
		require.True(t, ok, name)
		if _, excused := unfamiliar[rmqpb.Code(number)]; !excused {
			require.Contains(t, familiar, rmqpb.Code(number), name)
		}
	}
}
