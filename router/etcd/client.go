package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/mq"
)

// DefaultPrefix is below which the entries lie when nobody says otherwise.
const DefaultPrefix = "/perigee"

// dialTimeout bounds a try to connect, and the first login.
const dialTimeout = 5 * time.Second

// Options configure a Backend.
type Options struct {
	// Endpoints are the host:port of the members of etcd, at least one.
	Endpoints []string
	// Prefix is what all keys begin with, with a slash behind it; empty: DefaultPrefix.
	// Deployments that share an etcd have different ones.
	Prefix string
	// Username and Password are those of a user of etcd; empty: none.
	Username, Password string
	// Dial are further options of the connections, as those of TLS. Without any they are
	// cleartext.
	Dial []grpc.DialOption
}

// Open returns a backend over the etcd that opts name. It connects when it is used; with a
// user it logs in at once, and the error matches mq.ErrUnavailable when etcd does not
// answer, and ErrDenied too when it refuses the user.
func Open(opts Options) (*Backend, error) {
	if len(opts.Endpoints) == 0 {
		return nil, &mq.InvalidError{Kind: mq.ErrInvalid, Field: "endpoints", Reason: "must name at least one"}
	}
	prefix := cmp.Or(strings.TrimRight(opts.Prefix, "/"), DefaultPrefix)
	name := fmt.Sprintf("etcd %s, keys below %s", strings.Join(opts.Endpoints, ","), prefix)
	c, err := clientv3.New(clientv3.Config{
		Endpoints: opts.Endpoints, Username: opts.Username, Password: opts.Password,
		DialTimeout: dialTimeout, DialOptions: opts.Dial, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, (&Backend{name: name}).unavailable(err)
	}
	b := newBackend(&client{c}, prefix, name)
	b.reasons = func() error { return reasons(opts) }
	return b, nil
}

// reasonTimeout bounds the question why a member does not answer.
const reasonTimeout = time.Second

// reasons says why connections to the members fail. etcd's client tries again until its time is
// over, and then only says that: a certificate that is not trusted would look like a
// member that is not there.
func reasons(opts Options) error {
	ctx, cancel := context.WithTimeout(context.Background(), reasonTimeout)
	defer cancel()
	var errs []error
	for _, endpoint := range opts.Endpoints {
		conn, err := grpc.NewClient("passthrough:///"+endpoint, append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(endpoint),
		}, opts.Dial...)...)
		if err == nil {
			_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			err = errors.Join(onlyUnavailable(err), conn.Close())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", endpoint, err))
		}
	}
	return errors.Join(errs...)
}

// onlyUnavailable passes on that there is no connection.
func onlyUnavailable(err error) error {
	if s := status.Convert(err); s.Code() == codes.Unavailable {
		return errors.New(s.Message())
	}
	return nil
}

// ErrDenied says that etcd has answered, and does not let the user in: it knows another
// password, or no such user, or wants one, or the user may not read or write the keys.
var ErrDenied = errors.New("etcd does not let this user in")

// denied reports whether an error is such an answer.
func denied(err error) bool {
	switch answer, _ := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err)); answer {
	case rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted:
		return true
	}
	return false
}

// A client is a cluster by way of etcd's own client, which goes to another member where
// one does not answer.
type client struct{ etcd *clientv3.Client }

func (c *client) get(ctx context.Context, key string) (value, error) {
	resp, err := c.etcd.Get(ctx, key)
	if err != nil {
		return value{}, err
	}
	if len(resp.Kvs) == 0 {
		return value{key: key}, nil
	}
	return valueOf(resp.Kvs[0]), nil
}

// valueOf returns what is there. Its bytes are not nil.
func valueOf(kv *mvccpb.KeyValue) value {
	return value{key: string(kv.Key), bytes: append([]byte{}, kv.Value...), revision: kv.ModRevision}
}

func (c *client) list(ctx context.Context, from, end string, limit int, at int64) ([]value, bool, int64, error) {
	resp, err := c.etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)), clientv3.WithRev(at))
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return nil, false, 0, errCompacted
	case err != nil:
		return nil, false, 0, err
	}
	values := make([]value, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		values[i] = valueOf(kv)
	}
	if at == 0 {
		at = resp.Header.Revision
	}
	return values, resp.More, at, nil
}

func (c *client) swap(ctx context.Context, guard string, at int64, writes []value) (int64, error) {
	ops := make([]clientv3.Op, len(writes))
	for i, w := range writes {
		if w.bytes == nil {
			ops[i] = clientv3.OpDelete(w.key)
		} else {
			ops[i] = clientv3.OpPut(w.key, string(w.bytes))
		}
	}
	resp, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(guard), "=", at)).Then(ops...).Commit()
	switch {
	case err != nil && refused(err):
		return 0, fmt.Errorf("%w: %w", errRefused, err)
	case err != nil:
		return 0, err
	case !resp.Succeeded:
		return 0, nil
	}
	return resp.Header.Revision, nil
}

// refused reports whether an error is an answer of etcd which says that a transaction was
// not made and will not be.
func refused(err error) bool {
	answer, ok := errors.AsType[rpctypes.EtcdError](err)
	if !ok {
		return false
	}
	switch answer.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated,
		codes.ResourceExhausted, codes.NotFound, codes.OutOfRange:
		return true
	}
	return false
}

func (c *client) watch(ctx context.Context, prefix string, from int64, show func([]value, int64) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A member without a leader would be silent; a quiet prefix is behind its compaction
	// without the notes of progress.
	events := c.etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for resp := range events {
		if resp.CompactRevision > 0 {
			return errCompacted
		}
		if err := resp.Err(); err != nil {
			return err
		}
		values := make([]value, len(resp.Events))
		for i, event := range resp.Events {
			values[i] = valueOf(event.Kv)
			if event.Type == clientv3.EventTypeDelete {
				values[i].bytes = nil
			}
		}
		upTo := int64(0)
		if resp.IsProgressNotify() {
			upTo = resp.Header.Revision
		}
		if err := show(values, upTo); err != nil {
			return err
		}
	}
	return cmp.Or(ctx.Err(), errors.New("the watch has ended"))
}

func (c *client) close() error { return c.etcd.Close() }
