package mq_test

import (
	"strings"
	"testing"

	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestNamesAreCheckedByLengthAlphabetAndReservation(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name                    string
		topic, group, namespace bool // legal as
	}{
		{"a", true, true, true},
		{"aZ09_-%|", true, true, true},
		{"", false, false, true},
		{"  ", false, false, false},
		{"a.b", false, false, false},
		{"a/b", false, false, false},
		{"ä", false, false, false},
		{"a\n", false, false, false},
		{x(120), true, true, true},
		{x(121), true, false, true},
		{x(127), true, false, true},
		{x(128), false, false, false},
		{"%DLQ%" + x(120), true, false, true},
		{"%DLQ%" + x(123), false, false, false},
		{"%RETRY%g", true, true, true},
		{"%SYS%", true, false, true},
		{mq.RedriveGroup, true, false, true},
		{"%sys%g", true, true, true},
		{"TBW102", false, true, true},
		{"tbw102", true, true, true},
		{"rmq_sys_", false, true, true},
		{"DEFAULT_CONSUMER", true, false, true},
		{"CID_RMQ_SYS_x", true, false, true},
		{"CID_ONS-HTTP-PROXY", true, false, true},
	} {
		check := func(legal bool, kind, err error) {
			t.Helper()
			if legal {
				require.NoError(t, err, c.name)
				return
			}
			require.ErrorIs(t, err, kind, c.name)
			var invalid *mq.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.LessOrEqual(t, len(invalid.Value), 67)
		}
		check(c.topic, mq.ErrIllegalTopic, mq.ValidateTopic(c.name))
		check(c.group, mq.ErrIllegalGroup, mq.ValidateGroup(c.name))
		check(c.namespace, mq.ErrInvalid, mq.ValidateNamespace(c.name))
	}
}

func TestInvalidErrorNamesFieldValueAndRule(t *testing.T) {
	err := error(&mq.InvalidError{Kind: mq.ErrIllegalTopic, Field: "topic", Value: "a b", Reason: "must not"})
	require.EqualError(t, err, `topic "a b": must not`)
	require.ErrorIs(t, err, mq.ErrIllegalTopic)
	require.NotErrorIs(t, err, mq.ErrIllegalGroup)
}

func TestDeadLetterNamesLeadThereAndBack(t *testing.T) {
	group := mq.Resource{Namespace: "n", Name: "g"}
	topic := group.DeadLetterTopic()
	require.Equal(t, "n/%DLQ%g", topic.String())
	back, ok := topic.DeadLetterGroup()
	require.True(t, ok)
	require.Equal(t, group, back)
	for _, name := range []string{"g", "%DLQ%", "%dlq%g", "x%DLQ%g", ""} {
		_, ok := mq.Resource{Name: name}.DeadLetterGroup()
		require.False(t, ok, name)
	}
	require.Equal(t, "g", mq.Resource{Name: "g"}.String())
}

func TestShortenKeepsWholeCharacters(t *testing.T) {
	require.Equal(t, strings.Repeat("x", 64), mq.Shorten(strings.Repeat("x", 64)))
	require.Equal(t, strings.Repeat("x", 64)+"...", mq.Shorten(strings.Repeat("x", 65)))
	require.Equal(t, strings.Repeat("x", 63)+"...", mq.Shorten(strings.Repeat("x", 63)+"äz"))
}
