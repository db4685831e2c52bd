package crashtest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The judge must be able to find every kind of fault.
func TestJudgeFindsEachKindOfFault(t *testing.T) {
	groups := map[string]string{"g": ""}
	get := func(h *history, id string, offset int64, attempt int32) {
		h.deliver(delivery{
			group: "g", id: id, body: body(id), place: place{queue{}, offset}, attempt: attempt,
			began: time.Now(), at: time.Now(),
		})
	}
	settle := func(h *history, id string) {
		h.beginAck(key{"g", id, ""})
		h.endAck(key{"g", id, ""}, time.Now())
	}
	for name, c := range map[string]struct {
		fault  string
		stored int64
		story  func(h *history)
	}{
		"none": {"", 2, func(h *history) {
			h.endSend(h.beginSend("", []string{"a", "b"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			get(h, "b", 1, 1)
			settle(h, "b")
			time.Sleep(invisible)
			get(h, "a", 0, 2)
			settle(h, "a")
			h.beginSend("", []string{"unknown"}, nil)
		}},
		"lost": {"got 0 messages of the send", 0, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
		}},
		"half a batch": {"got 1 messages of the send", 1, func(h *history) {
			h.beginSend("", []string{"a", "b"}, nil)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"invented": {"was never sent", 0, func(h *history) { get(h, "x", 0, 1) }},
		"back after its ack": {"again (attempt 2) after its ack", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
			time.Sleep(invisible)
			get(h, "a", 0, 2)
		}},
		"leased twice": {"before the lease of attempt 1 ended", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			time.Sleep(invisible / 2)
			get(h, "a", 0, 2)
			settle(h, "a")
		}},
		"attempts forgotten": {"as attempt 1 after attempt 2", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 2)
			time.Sleep(invisible)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"one place for two": {"are both at", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			h.endSend(h.beginSend("", []string{"b"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			get(h, "b", 0, 1)
			settle(h, "a")
			settle(h, "b")
		}},
		"hole": {"nothing was received from offset 1", 2, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"wrong offset": {"was answered with offset 7", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 7}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"early": {"early", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, &wait{due: time.Now().Add(time.Second)}), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"delayed and lost": {"got 0 messages of the send", 0, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, &wait{due: time.Now()}), answer{offset: 0}, false)
		}},
		"lost after a recall that was refused": {"got 0 messages of the send", 0, func(h *history) {
			w := &wait{due: time.Now()}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.recall)
			h.answer("a", &w.recall, nil, false)
		}},
		"recalled and there": {"after it was answered", 1, func(h *history) {
			w := &wait{due: time.Now()}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.recall)
			h.answer("a", &w.recall, nil, true)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"there and recalled": {"had been delivered", 1, func(h *history) {
			w := &wait{due: time.Now()}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
			h.ask(&w.recall)
			h.answer("a", &w.recall, nil, true)
		}},
		"seen and not committed": {"nobody had committed it", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, &wait{half: true}), answer{offset: 0}, false)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"committed and lost": {"got 0 messages of the send", 0, func(h *history) {
			w := &wait{half: true}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.commit)
			h.answer("a", &w.commit, &w.rollback, true)
		}},
		"rolled back and there": {"after it was answered", 1, func(h *history) {
			w := &wait{half: true}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.commit)
			h.ask(&w.rollback)
			h.answer("a", &w.rollback, &w.commit, true)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"ended both ways": {"ended both ways", 0, func(h *history) {
			w := &wait{half: true}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.commit)
			h.ask(&w.rollback)
			h.answer("a", &w.commit, &w.rollback, true)
			h.answer("a", &w.rollback, &w.commit, true)
		}},
		"half message that is gone": {"is not listed", 0, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, &wait{half: true}), answer{offset: 0}, false)
			h.listed(map[string]bool{})
		}},
		"ended half message that is there": {"is listed", 0, func(h *history) {
			w := &wait{half: true}
			h.endSend(h.beginSend("", []string{"a"}, w), answer{offset: 0}, false)
			h.ask(&w.rollback)
			h.answer("a", &w.rollback, &w.commit, true)
			h.listed(map[string]bool{"a": true})
		}},
		"stored twice": {"and, sent again, with", 2, func(h *history) {
			sn := h.beginSend("", []string{"a"}, nil)
			h.endSend(sn, answer{offset: 0}, false)
			h.endSend(sn, answer{offset: 1}, true)
			get(h, "a", 0, 1)
			settle(h, "a")
		}},
		"gone without an ack": {"never acknowledged", 1, func(h *history) {
			h.endSend(h.beginSend("", []string{"a"}, nil), answer{offset: 0}, false)
			get(h, "a", 0, 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory()
				c.story(h)
				faults := h.judge(groups, map[queue]int64{{}: c.stored})
				if c.fault == "" {
					require.Empty(t, faults)
					return
				}
				require.NotEmpty(t, faults)
				all := ""
				for _, f := range faults {
					all += f + "\n"
				}
				require.Contains(t, all, c.fault)
			})
		})
	}
}

// TestJudgeAllowsASecondCopyOnlyInAnOutage: a send that is repeated comes to the shard of its
// first try, unless a proxy could not find that one or the other.
func TestJudgeAllowsASecondCopyOnlyInAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		fault string
		away  string
		when  time.Duration // the outage begins, and lasts for a second; the tries are at 10 s and 20 s
	}{
		"nothing was away":           {"none of which was away", "", 0},
		"another shard":              {"none of which was away", "c", 10 * time.Second},
		"between the tries":          {"none of which was away", "a", 15 * time.Second},
		"at the first try":           {"", "a", 10 * time.Second},
		"at the second one":          {"", "b", 20 * time.Second},
		"it began during a try":      {"", "b", 20*time.Second + 100*time.Millisecond},
		"it ended when a try began":  {"", "a", 9 * time.Second},
		"it goes on from before":     {"", "a", 9*time.Second + 500*time.Millisecond},
		"it was over before the try": {"none of which was away", "a", 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory()
				h.deployed, h.outages = true, new(outages)
				if c.away != "" {
					go func() {
						time.Sleep(c.when)
						end := h.outages.begin(c.away)
						time.Sleep(time.Second)
						end()
					}()
				}
				sn := h.beginSend("", []string{"m"}, nil)
				for i, shard := range []string{"a", "b"} {
					time.Sleep(10*time.Second - 200*time.Millisecond*time.Duration(i))
					from := time.Now()
					time.Sleep(200 * time.Millisecond)
					h.tried(sn, span{from, time.Now()})
					h.endSend(sn, answer{offset: int64(i)}, i > 0)
					h.deliver(delivery{
						group: "g", id: "m", body: body("m"), place: place{queue{shard: shard}, int64(i)}, attempt: 1, began: time.Now(), at: time.Now(),
					})
					h.beginAck(key{"g", "m", shard})
					h.endAck(key{"g", "m", shard}, time.Now())
				}
				synctest.Wait()
				time.Sleep(time.Minute)
				faults := h.judge(map[string]string{"g": ""}, nil)
				if c.fault == "" {
					require.Empty(t, faults)
					require.Equal(t, 1, h.copies)
					return
				}
				require.Len(t, faults, 1)
				require.Contains(t, faults[0], c.fault)
			})
		})
	}
}
