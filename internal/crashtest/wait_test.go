package crashtest

import "time"

// wait is what the clients know of a message that waits for its time, or for the end of its
// transaction.
type wait struct {
	due  time.Time // its time of delivery
	half bool      // it is a half message

	recall, commit, rollback promise
}

// A promise is something that was asked for.
type promise struct {
	asked, ok, refused bool
}

// must reports whether the message must be delivered.
func (w *wait) must() bool {
	if w.half {
		return w.commit.ok
	}
	return !w.recall.asked || w.recall.refused && !w.recall.ok
}

// ask notes what is about to be asked for.
func (h *history) ask(p *promise) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.asked = true
}

// answer notes that it was carried out, or refused because the message waits no more.
// opposite is what must not be carried out then, nil for a recall.
func (h *history) answer(id string, p, opposite *promise, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ok {
		p.refused = true
		return
	}
	p.ok = true
	if opposite == nil {
		h.recalls++
	} else {
		h.ends++
	}
	if opposite != nil && opposite.ok {
		h.fault(&h.visible, "the transaction of %s was ended both ways", id)
	}
	w := h.msgs[id].wait
	for group, seen := range h.seen {
		if len(seen[id]) > 0 && p != &w.commit {
			h.fault(&h.visible, "%s was recalled or rolled back when it had been delivered to group %s", id, group)
		}
	}
}

// mayBeSeen judges that a message is in somebody's hands.
func (h *history) mayBeSeen(d delivery) {
	w := h.msgs[d.id].wait
	switch {
	case w == nil:
	case !w.half && d.at.Before(w.due):
		h.fault(&h.early, "group %s got %s %v early", d.group, d.id, w.due.Sub(d.at))
	case w.half && !w.commit.asked:
		h.fault(&h.visible, "group %s got %s and nobody had committed it", d.group, d.id)
	case w.recall.ok || w.rollback.ok:
		h.fault(&h.visible, "group %s got %s after it was answered that it was recalled or rolled back", d.group, d.id)
	}
}

// listed judges which transactions are said to be open when nothing is under way.
func (h *history) listed(open map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sn := range h.sends {
		w := sn.wait
		switch {
		case w == nil || !w.half:
		case open[sn.ids[0]] && (w.commit.ok || w.rollback.ok):
			h.fault(&h.visible, "the transaction of %s was ended and is listed", sn.ids[0])
		case !open[sn.ids[0]] && sn.acked && !w.commit.asked && !w.rollback.asked:
			h.fault(&h.lost, "the transaction of %s was ended by nobody and is not listed", sn.ids[0])
		}
	}
}

// questioned counts a question to a producer, and returns what is known of the message.
func (h *history) questioned(id, text string) *wait {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.questions++
	sn := h.msgs[id]
	if sn == nil || sn.wait == nil || text != body(id) {
		h.fault(&h.other, "a producer was asked about %s with the body %.40q", id, text)
		return nil
	}
	return sn.wait
}

// waitOf returns what is known of a message that waits.
func (h *history) waitOf(id string) *wait {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sn := h.msgs[id]; sn != nil {
		return sn.wait
	}
	return nil
}

// latest returns the time by which all delayed messages are due.
func (h *history) latest() (at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sn := range h.sends {
		if sn.wait != nil && sn.due.After(at) {
			at = sn.due
		}
	}
	return at
}
