// Package tierversion lets the processes of a deployment tell each other which versions of the
// protocol between tiers they speak, so that two which cannot work together say so in words
// instead of failing in some call. Fields and calls that are added do not make a new version:
// what is not known is passed over. internal/node adds it to every connection between tiers.
package tierversion

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Range is the versions that a process speaks.
type Range struct {
	// Newest is its own version, Oldest the oldest one of a peer with which it still works.
	Newest, Oldest uint32
}

// Current returns the range of this program. Newest grows when peers of the version before would
// misunderstand something; Oldest follows when nothing in this program serves them any more.
// A rolling upgrade needs that the two differ for one release.
func Current() Range { return Range{Newest: 1, Oldest: 1} }

// The keys of the metadata of every call.
const (
	newestKey = "perigee-tier-newest"
	oldestKey = "perigee-tier-oldest"
)

// String names the versions as people do.
func (r Range) String() string {
	if r.Newest == r.Oldest {
		return fmt.Sprintf("version %d", r.Newest)
	}
	return fmt.Sprintf("versions %d to %d", r.Oldest, r.Newest)
}

// check returns an error when processes of the two ranges cannot work together.
func (r Range) check(caller Range) error {
	var advice string
	switch {
	case caller.Newest < r.Oldest:
		advice = "the caller is too old: upgrade it"
	case r.Newest < caller.Oldest:
		advice = "this process is too old: upgrade it"
	default:
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "this process speaks %s of the protocol between tiers, the caller %s: %s", r, caller, advice)
}

// Client returns the options of connections to other tiers: each call says the range.
func (r Range) Client() []grpc.DialOption {
	say := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, newestKey, strconv.FormatUint(uint64(r.Newest), 10), oldestKey, strconv.FormatUint(uint64(r.Oldest), 10))
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoker(say(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return streamer(say(ctx), desc, cc, method, opts...)
		}),
	}
}

// Server returns the options of a server of other tiers: it refuses, with FAILED_PRECONDITION
// and in words, callers that it cannot work with. One that says nothing speaks version 1.
func (r Range) Server() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := r.check(callerOf(ctx)); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := r.check(callerOf(stream.Context())); err != nil {
				return err
			}
			return handler(srv, stream)
		}),
	}
}

func callerOf(ctx context.Context) Range {
	number := func(key string) uint32 {
		if values := metadata.ValueFromIncomingContext(ctx, key); len(values) == 1 {
			if n, err := strconv.ParseUint(values[0], 10, 32); err == nil && n > 0 {
				return uint32(n)
			}
		}
		return 1
	}
	newest, oldest := number(newestKey), number(oldestKey)
	return Range{Newest: newest, Oldest: min(oldest, newest)}
}
