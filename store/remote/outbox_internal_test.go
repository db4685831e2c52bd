package remote

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

// TestWhoPutsIntoAnOutboxCanWaitForRoom: what is taken, or the end, lets it go on.
func TestWhoPutsIntoAnOutboxCanWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox()
		o.room(t.Context(), 10)
		require.True(t, o.put(mem.SliceBuffer(make([]byte, 11))))
		for _, end := range []func(cancel context.CancelFunc){
			func(context.CancelFunc) { o.take(t.Context()) },
			func(cancel context.CancelFunc) { cancel() },
			func(context.CancelFunc) { o.drop() },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			went := make(chan struct{})
			go func() {
				o.room(ctx, 10)
				close(went)
			}()
			synctest.Wait()
			select {
			case <-went:
				t.Fatal("there is no room")
			default:
			}
			end(cancel)
			<-went
			cancel()
			o.put(mem.SliceBuffer(make([]byte, 11)))
		}
	})
}
