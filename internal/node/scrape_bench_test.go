package node

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// BenchmarkScrape serves 1,000 topics and 1,000 groups, the most by default.
func BenchmarkScrape(b *testing.B) {
	cfg := config.Default()
	cfg.DataDir = b.TempDir()
	m, err := newMetrics(cfg, func() error { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = m.close() }()
	var v shard.Survey
	for i := range cfg.Metrics.MaxTopics {
		topic := mq.Resource{Name: fmt.Sprint("topic-", i)}
		v.Topics = append(v.Topics, shard.TopicRow{Topic: topic, Stored: int64(i)})
		v.Groups = append(v.Groups, shard.GroupRow{Topic: topic, Group: mq.Resource{Name: "group"}, Oldest: int64(i)})
	}
	m.surveys.mu.last = map[string]shard.Survey{"perigee-0": v}
	m.surveys.mu.next = time.Now().Add(time.Hour)
	b.ReportAllocs()
	bytes := 0
	for b.Loop() {
		rec := httptest.NewRecorder()
		m.handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if rec.Code != http.StatusOK {
			b.Fatal(rec.Body.String())
		}
		bytes = rec.Body.Len()
	}
	b.ReportMetric(float64(bytes), "bytes")
}
