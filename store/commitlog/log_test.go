package commitlog

import (
	"errors"
	iofs "io/fs"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func TestNewLogIsEmptyAndReopens(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		l := mustOpen(t, Options{FS: fs, Dir: dir})
		require.Equal(t, Pos(segmentHeaderSize), l.Appended())
		require.Equal(t, l.Appended(), l.Flushed())
		require.Equal(t, l.First(), l.Appended())
		requireRecords(t, l, 0)
		require.NoError(t, l.Scan(0, func(Record) error { return errors.New("no record expected") }))
		require.NoError(t, l.Close())
		l = mustOpen(t, Options{FS: fs, Dir: dir})
		requireRecords(t, l, 0)
	})
}

func TestAppendedRecordsAreReadAtOnceAndAfterReopen(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		l := mustOpen(t, Options{FS: fs, Dir: dir})
		sizes := []int{0, 1, 7, 8, 9, 1024, 5000, 300_000}
		out := mustAppend(t, l, sizes...)
		check := func(l *Log) {
			for i, a := range out {
				p := make([]byte, sizes[i])
				require.NoError(t, l.ReadAt(p, a.PayloadPos))
				require.Equal(t, payloadFor(uint64(i+1), sizes[i]), p)
				require.Equal(t, uint64(i+1), a.Index)
				require.Zero(t, a.Pos%8)
			}
			requireRecords(t, l, uint64(len(sizes)))
		}
		check(l)
		require.Equal(t, out[len(out)-1].Next, l.Appended())
		require.Less(t, l.Flushed(), l.Appended())
		require.NoError(t, l.Sync())
		require.Equal(t, l.Appended(), l.Flushed())
		require.NoError(t, l.Close())

		l = mustOpen(t, Options{FS: fs, Dir: dir})
		check(l)
		require.Equal(t, out[len(out)-1].Next, l.Appended())
		mustAppend(t, l, 10, 20)
		requireRecords(t, l, uint64(len(sizes)+2))
	})
}

func TestScanStartsAtAnyBoundary(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", SegmentSize: 4096, ZeroFill: -1})
	var all []Appended
	for i := range 40 {
		all = append(all, mustAppend(t, l, i*17%900)...)
	}
	require.Greater(t, len(l.Segments()), 3)
	for i, a := range all {
		var n uint64
		require.NoError(t, l.Scan(a.Pos, checker(uint64(i+1), &n)))
		require.Equal(t, len(all)-i, int(n))
		n = 0
		require.NoError(t, l.Scan(a.Next, checker(uint64(i+2), &n)))
		require.Equal(t, len(all)-i-1, int(n))
	}
	for _, s := range l.Segments() {
		var n uint64
		require.NoError(t, l.Scan(s.Base, checker(s.FirstIndex, &n)))
		n = 0
		require.NoError(t, l.Scan(s.First, checker(s.FirstIndex, &n)))
	}
	stop := errors.New("enough")
	require.ErrorIs(t, l.Scan(0, func(Record) error { return stop }), stop)

	var bad *CorruptionError
	require.ErrorAs(t, l.Scan(all[3].Pos+8, func(Record) error { return nil }), &bad)
	require.ErrorIs(t, l.Scan(l.Appended()+8, func(Record) error { return nil }), ErrOutOfRange)
}

func TestBatchRollsSegmentsInTheMiddle(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		o := Options{FS: fs, Dir: dir, SegmentSize: 4096}
		l := mustOpen(t, o)
		sizes := make([]int, 100)
		for i := range sizes {
			sizes[i] = i * 31 % 1200
		}
		out := mustAppend(t, l, sizes...)
		for i, a := range out {
			p := make([]byte, sizes[i])
			require.NoError(t, l.ReadAt(p, a.PayloadPos))
			require.Equal(t, payloadFor(uint64(i+1), sizes[i]), p)
		}
		segs := l.Segments()
		require.Greater(t, len(segs), 10)
		for i, s := range segs {
			require.LessOrEqual(t, int64(s.End-s.Base), int64(4096))
			require.Equal(t, i+1 < len(segs), s.Sealed)
			if i > 0 {
				require.Equal(t, segs[i-1].End, s.Base)
			}
		}
		require.NoError(t, l.Close())
		var n uint64
		require.NoError(t, Verify(fs, dir, checker(1, &n)))
		require.Equal(t, 100, int(n))
		l = mustOpen(t, o)
		requireRecords(t, l, 100)
		require.Equal(t, segs[len(segs)-1].End, l.Appended())
	})
}

func TestTheLargestRecordFitsAndALargerOneWritesNothing(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", SegmentSize: 5000, ZeroFill: -1})
	limit := int(l.MaxPayload())
	mustAppend(t, l, limit)
	mustAppend(t, l, 1, limit, limit)
	before := l.Appended()
	_, err := l.Append(entriesFrom(5, 10, limit+1))
	require.ErrorIs(t, err, mq.ErrTooLarge)
	_, err = l.Append([]Entry{{Kind: 0}})
	require.ErrorIs(t, err, mq.ErrInvalid)
	_, err = l.Append([]Entry{{Kind: kindReserved}})
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.Equal(t, before, l.Appended())
	require.NoError(t, l.Err())
	mustAppend(t, l, 3)
	requireRecords(t, l, 5)
	for _, s := range l.Segments() {
		require.LessOrEqual(t, int64(s.End-s.Base), int64(5000))
	}
}

func TestBatchIsReusedWithoutAllocation(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.Default, Dir: t.TempDir(), ZeroFill: -1})
	var b Batch
	head, body := []byte("head"), make([]byte, 1000)
	fn := func(dst []byte) ([]byte, error) { return append(dst, body...), nil }
	run := func() {
		b.Reset()
		for range 50 {
			b.Add(1, head, body)
			_ = b.AddFunc(2, fn)
		}
		if _, err := l.AppendBatch(&b); err != nil {
			panic(err)
		}
	}
	run()
	require.Zero(t, testing.AllocsPerRun(20, run))
	p := make([]byte, 4)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if err := l.ReadAt(p, b.out[0].PayloadPos); err != nil {
			panic(err)
		}
	}))
	require.Equal(t, head, p)
}

type encoded []byte

func (e encoded) Append(dst []byte) []byte { return append(dst, e...) }

func TestFailedAddFuncLeavesTheBatchAsItWas(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", ZeroFill: -1})
	var b Batch
	b.Add(kindFor(1), payloadFor(1, 20))
	size := b.Size()
	boom := errors.New("boom")
	require.ErrorIs(t, b.AddFunc(1, func(dst []byte) ([]byte, error) { return append(dst, 1, 2, 3), boom }), boom)
	require.Equal(t, size, b.Size())
	require.Equal(t, 1, b.Len())
	require.NoError(t, b.AddFunc(kindFor(2), func(dst []byte) ([]byte, error) { return append(dst, payloadFor(2, 5)...), nil }))
	b.AddEncoder(kindFor(3), encoded(payloadFor(3, 9)))
	_, err := l.AppendBatch(&b)
	require.NoError(t, err)
	requireRecords(t, l, 3)
	for i, n := range []int{20, 5, 9} {
		require.Equal(t, payloadFor(uint64(i+1), n), b.Payload(i))
		require.Equal(t, kindFor(uint64(i+1)), b.Kind(i))
	}
}

func TestReadAtNamesWhatIsOutside(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", SegmentSize: 4096, ZeroFill: -1})
	out := mustAppend(t, l, 1000, 1000, 1000, 1000)
	p := make([]byte, 2000)
	require.ErrorIs(t, l.ReadAt(p, out[3].PayloadPos), ErrOutOfRange)
	require.ErrorIs(t, l.ReadAt(p[:1], l.Appended()+100), ErrOutOfRange)
	require.ErrorIs(t, l.ReadAt(p[:1], 3), ErrOutOfRange, "a segment header is no payload")
	require.NoError(t, l.DropBefore(l.Appended()))
	require.ErrorIs(t, l.ReadAt(p[:10], out[0].PayloadPos), ErrTrimmed)
	require.ErrorIs(t, l.Scan(0, nil), ErrTrimmed)
}

func TestDropBeforeRemovesWholeSealedSegmentsOnly(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		o := Options{FS: fs, Dir: dir, SegmentSize: 4096}
		l := mustOpen(t, o)
		for range 60 {
			mustAppend(t, l, 700)
		}
		segs := l.Segments()
		require.NoError(t, l.DropBefore(segs[3].Base-1))
		require.Equal(t, segs[2].First, l.First())
		require.NoError(t, l.DropBefore(segs[3].Base))
		require.Equal(t, segs[3].First, l.First())
		var n uint64
		require.NoError(t, l.Scan(l.First(), checker(segs[3].FirstIndex, &n)))
		require.NoError(t, l.DropBefore(1<<60))
		require.Len(t, l.Segments(), 1)
		require.NoError(t, l.Close())

		l = mustOpen(t, o)
		require.Equal(t, uint64(60), l.LastIndex())
		require.Equal(t, segs[len(segs)-1].First, l.First())
		mustAppend(t, l, 5)
		n = 0
		require.NoError(t, l.Scan(l.First(), checker(segs[len(segs)-1].FirstIndex, &n)))
	})
}

func TestRollGoesOnInANewSegmentUnlessThereIsNothingToLeave(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		o := Options{FS: fs, Dir: dir, SegmentSize: 1 << 20}
		l := mustOpen(t, o)
		require.NoError(t, l.Roll())
		require.Len(t, l.Segments(), 1)
		out := mustAppend(t, l, 100)
		require.NoError(t, l.Roll())
		require.NoError(t, l.Roll())
		require.Len(t, l.Segments(), 2)
		require.Equal(t, l.Appended(), l.Flushed())
		p := make([]byte, 100)
		require.NoError(t, l.ReadAt(p, out[0].PayloadPos))
		mustAppend(t, l, 100)
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.Roll(), mq.ErrStopped)
		l = mustOpen(t, o)
		requireRecords(t, l, 2)
		require.NoError(t, l.DropBefore(l.Segments()[1].Base))
		var n uint64
		require.NoError(t, l.Scan(l.First(), checker(2, &n)))
		require.Equal(t, uint64(1), n)
	})
}

func TestOldestNeededIsTheSegmentThatHoldsTheFirstRecordFromAPosition(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", SegmentSize: 4096, ZeroFill: -1})
	var all []Appended
	for range 20 {
		all = append(all, mustAppend(t, l, 1500)...)
	}
	segs := l.Segments()
	require.Len(t, segs, 10)
	for i, a := range all {
		require.Equal(t, segs[i/2], l.OldestNeeded(a.Pos), "from record %d on", i)
		require.Equal(t, segs[i/2], l.OldestNeeded(a.PayloadPos))
		require.Equal(t, segs[i/2], l.OldestNeeded(a.Next-1))
		require.Equal(t, segs[min((i+1)/2, 9)], l.OldestNeeded(a.Next), "behind record %d", i)
	}
	require.Equal(t, segs[0], l.OldestNeeded(0))
	require.NoError(t, l.DropBefore(segs[3].Base))
	require.Equal(t, segs[3], l.OldestNeeded(0))
	require.NoError(t, l.Roll())
	require.NotEqual(t, segs[9].Base, l.OldestNeeded(all[19].Next).Base, "the segment that was left holds nothing from there on")
}

func TestOldestReadsTheHeaderOfTheFirstSegmentOnly(t *testing.T) {
	fs := vfs.NewMem()
	_, err := Oldest(fs, "log")
	require.ErrorIs(t, err, iofs.ErrNotExist)
	o := Options{FS: fs, Dir: "log", SegmentSize: 4096, ZeroFill: -1}
	l := mustOpen(t, o)
	for range 20 {
		mustAppend(t, l, 1500)
	}
	for _, drop := range []int{0, 3} {
		require.NoError(t, l.DropBefore(l.Segments()[drop].Base))
		want := l.Segments()[0]
		want.End, want.Sealed = 0, false
		got, err := Oldest(fs, "log")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, l.Close())
	oldest, err := Oldest(fs, "log")
	require.NoError(t, err)
	f, err := fs.OpenReadWrite(l.opts.FS.PathJoin("log", segmentName(oldest.Base)), writeCategory)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	var bad *CorruptionError
	_, err = Oldest(fs, "log")
	require.ErrorAs(t, err, &bad)
}

func TestTermIsKeptAndMayNotFall(t *testing.T) {
	fs := vfs.NewMem()
	l := mustOpen(t, Options{FS: fs, Dir: "log", Term: 3})
	mustAppend(t, l, 10)
	require.NoError(t, l.Close())
	_, err := Open(Options{FS: fs, Dir: "log", Term: 2})
	require.ErrorIs(t, err, mq.ErrInvalid)
	l = mustOpen(t, Options{FS: fs, Dir: "log", Term: 4})
	mustAppend(t, l, 10)
	var terms []uint64
	require.NoError(t, l.Scan(0, func(r Record) error { terms = append(terms, r.Term); return nil }))
	require.Equal(t, []uint64{3, 4}, terms)
}

func TestClosedLogRefusesEverything(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log"})
	out := mustAppend(t, l, 10)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.NoError(t, l.Err())
	_, err := l.Append(entriesFrom(2, 1))
	require.ErrorIs(t, err, mq.ErrStopped)
	require.ErrorIs(t, l.Sync(), mq.ErrStopped)
	require.ErrorIs(t, l.ReadAt(make([]byte, 1), out[0].PayloadPos), mq.ErrStopped)
	require.ErrorIs(t, l.Scan(0, nil), mq.ErrStopped)
	require.ErrorIs(t, l.DropBefore(1), mq.ErrStopped)
}

func TestInvalidOptionsAreNamed(t *testing.T) {
	_, err := Open(Options{FS: vfs.NewMem()})
	require.ErrorIs(t, err, mq.ErrInvalid)
	_, err = Open(Options{FS: vfs.NewMem(), Dir: "x", SegmentSize: 100})
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.ErrorContains(t, err, "segment size 100")
}
