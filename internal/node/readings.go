package node

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// emitProcess adds what the process is and how it is.
func (m *metrics) emitProcess(e *emission, surveyAge time.Duration) {
	emit(e, buildMetrics, []buildReading{{m.version, runtime.Version()}}, func(b buildReading) attribute.Set {
		return attribute.NewSet(attribute.String("version", cmp.Or(b.version, "dev")), attribute.String("go_version", b.goVersion))
	})
	r := &stateReading{ready: m.ready() == nil, recovery: time.Duration(m.recovered.Load()).Seconds(), surveyAge: surveyAge.Seconds()}
	if rt := m.router.Load(); rt != nil {
		r.routerFailed, r.routerDegraded = rt.Err() != nil, rt.Degraded() != nil
	}
	if usage, err := m.disk(); err == nil {
		r.disk = usage
	}
	emit(e, stateMetrics, []*stateReading{r}, noLabels)
}

func (m *metrics) emitCalls(e *emission) {
	e.emitDurations(rpcDuration, m.calls.list())
	e.emitDurations(receiveWait, []spread{{*attribute.EmptySet(), m.calls.waits.Snapshot()}})
}

// emitStore adds what the shards count.
func (m *metrics) emitStore(e *emission, s *store.Store) {
	stats := s.Stats()
	var shards []*shardReading
	var stages, late []spread
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		r := &shardReading{name: name, Stats: stats[name]}
		if views, err := s.Views(name); err == nil { // else it is closed
			r.views = views
		}
		shards = append(shards, r)
		late = append(late, spread{attribute.NewSet(attribute.String("shard", name)), r.Late})
		for i, spent := range r.Stages {
			labels := attribute.NewSet(attribute.String("shard", name), attribute.String("stage", shard.Stage(i).String()))
			stages = append(stages, spread{labels, spent})
		}
	}
	labels := func(r *shardReading) attribute.Set { return attribute.NewSet(attribute.String("shard", r.name)) }
	emit(e, shardMetrics, shards, labels)
	e.emitDurations(delayedLateness, late)
	e.emitDurations(stageDuration, stages)
	emit(e, logMetrics, shards, labels)
}

// emitSurveys adds what the topics and groups of the shards are at.
func emitSurveys(e *emission, list map[string]shard.Survey) {
	var topics []topicReading
	var groups []groupReading
	var dropped []droppedReading
	for _, name := range slices.Sorted(maps.Keys(list)) {
		v := list[name]
		for i := range v.Topics {
			topics = append(topics, topicReading{name, v.Topics[i].Topic.String(), &v.Topics[i]})
		}
		if v.OtherTopics != (shard.TopicRow{}) {
			topics = append(topics, topicReading{name, shard.Other, &v.OtherTopics})
		}
		for i := range v.Groups {
			groups = append(groups, groupReading{name, v.Groups[i].Group.String(), v.Groups[i].Topic.String(), &v.Groups[i]})
		}
		if v.OtherGroups != (shard.GroupRow{}) {
			groups = append(groups, groupReading{name, shard.Other, shard.Other, &v.OtherGroups})
		}
		dropped = append(dropped, droppedReading{name, v.TopicsDropped, v.GroupsDropped})
	}
	emit(e, topicMetrics, topics, func(r topicReading) attribute.Set {
		return attribute.NewSet(attribute.String("shard", r.shard), attribute.String("topic", r.topic))
	})
	emit(e, groupMetrics, groups, func(r groupReading) attribute.Set {
		return attribute.NewSet(attribute.String("shard", r.shard), attribute.String("group", r.group), attribute.String("topic", r.topic))
	})
	emit(e, droppedMetrics, dropped, func(r droppedReading) attribute.Set {
		return attribute.NewSet(attribute.String("shard", r.shard))
	})
}
