package commitlog

import (
	"fmt"
	"testing"
)

func BenchmarkAppend(b *testing.B) {
	payload := payloadFor(1, 1024)
	for _, sync := range []bool{false, true} {
		for _, n := range []int{1, 16, 64} {
			for _, fill := range []int64{0, -1} {
				b.Run(fmt.Sprintf("sync=%v/batch=%d/fill=%v", sync, n, fill == 0), func(b *testing.B) {
					l := mustOpen(b, Options{Dir: b.TempDir(), ZeroFill: fill, SegmentSize: 256 << 20})
					var batch Batch
					b.SetBytes(int64(n * len(payload)))
					b.ReportAllocs()
					for b.Loop() {
						batch.Reset()
						for range n {
							batch.Add(1, payload)
						}
						if _, err := l.AppendBatch(&batch); err != nil {
							b.Fatal(err)
						}
						if sync {
							if err := l.Sync(); err != nil {
								b.Fatal(err)
							}
						} else if l.Appended()-l.First() > 512<<20 {
							// Not a disk full of segments.
							if err := l.DropBefore(l.Appended()); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "records/s")
				})
			}
		}
	}
}

func BenchmarkReadAt(b *testing.B) {
	l := mustOpen(b, Options{Dir: b.TempDir()})
	out, err := l.Append(entriesFrom(1, 1024))
	if err != nil {
		b.Fatal(err)
	}
	p := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if err := l.ReadAt(p, out[0].PayloadPos); err != nil {
			b.Fatal(err)
		}
	}
}
