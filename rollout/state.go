package rollout

import (
	"fmt"
	"iter"
	"maps"
	"slices"
)

// State is what a run needs to go on where it stopped: positions of the data before Cursor are trained or taken out,
// except those in flight. It is JSON.
type State struct {
	Data     string   `json:"data"`     // the data set and its order
	Cursor   int64    `json:"cursor"`   // next position of the data: epoch × tasks + offset
	First    int64    `json:"first"`    // first place that is not trained
	Admitted int64    `json:"admitted"` // next new place
	InFlight []Flight `json:"in_flight"`
	Out      []Tally  `json:"out"` // of the batches from First on
}

// Flight is a group that was admitted and not yet trained.
type Flight struct {
	Place    int64 `json:"place"`
	Position int64 `json:"position"` // of its task in the data
}

// Tally counts what was taken out on the way to one batch.
type Tally struct {
	Out      int            `json:"out"`             // groups
	Filtered int            `json:"filtered"`        // of them, because all rewards were equal
	Failed   int            `json:"failed"`          // rollouts
	Kinds    map[string]int `json:"kinds,omitempty"` // of these
	Rollouts int            `json:"rollouts"`        // in the filtered groups
	Reward   float64        `json:"reward"`          // their sum
}

func (t *Tally) addFailed(g *group) {
	if t.Failed += len(g.failed); len(g.failed) > 0 {
		kinds := map[string]int{} // copies of t have the old one
		maps.Copy(kinds, t.Kinds)
		for _, kind := range g.failed {
			kinds[kind]++
		}
		t.Kinds = kinds
	}
}

func (t *Tally) addRewards(g *group) {
	for r := range present(g.rollouts) {
		t.Rollouts++
		t.Reward += r.Reward
	}
}

// State is the state after the last batch that SetVersion or Skip was called for: a batch that was taken and not yet
// trained is still in flight.
func (q *Queue) State() State {
	done := q.done()
	first := q.first(done)
	s := State{Data: q.identity(), Cursor: q.cursor, First: first, Admitted: max(q.admitted, first)}
	for p := first; p < q.admitted; p++ {
		if g := q.places[p]; g != nil {
			s.InFlight = append(s.InFlight, Flight{Place: p, Position: g.pos})
		}
		if k := q.batch(p); k-done == len(s.Out) {
			s.Out = append(s.Out, *q.tally(p))
		}
	}
	return s
}

func (q *Queue) restore(s State) error {
	if id := q.identity(); s.Data != id {
		return fmt.Errorf("rollout: cannot resume: the data is %s, the saved position is for %s; start a new run, or restore the data",
			id, s.Data)
	}
	if s.Cursor < 0 || s.First < 0 || s.Admitted < s.First || int64(len(s.InFlight)) > s.Admitted-s.First {
		return fmt.Errorf("rollout: cannot resume: saved cursor %d, places %d to %d, %d in flight do not agree",
			s.Cursor, s.First, s.Admitted, len(s.InFlight))
	}
	q.base, q.admitted, q.cursor = s.First, s.Admitted, s.Cursor
	for _, f := range s.InFlight {
		valid := f.Place >= s.First && f.Place < s.Admitted && f.Position >= 0 && f.Position < s.Cursor &&
			q.places[f.Place] == nil && q.groups[f.Position] == nil
		if !valid || !q.place(f.Place, f.Position) {
			return fmt.Errorf("rollout: cannot resume: saved position %d at place %d is out of range or double", f.Position, f.Place)
		}
	}
	for k, t := range s.Out {
		q.out[k] = &t
	}
	return nil
}

// identity says which data in which order: positions mean nothing in another.
func (q *Queue) identity() string {
	return fmt.Sprintf("%s (%d tasks, shuffle %t, seed %d)", q.plan.Source.Digest(), q.order.n, q.order.shuffle, q.order.seed)
}

// done is the number of batches taken that need not be repeated.
func (q *Queue) done() int { return min(q.taken, int(q.version-q.restored)+q.skipped) }

// retire forgets the batches that are done.
func (q *Queue) retire() {
	end := q.first(q.done())
	for place, g := range q.places {
		if place < end {
			delete(q.places, place)
			delete(q.groups, g.pos)
			delete(q.out, q.batch(place))
		}
	}
}

// first is the first place of batch k, batch the batch of a place.
func (q *Queue) first(k int) int64     { return q.base + int64(k)*int64(q.plan.Config.Prompts) }
func (q *Queue) batch(place int64) int { return int((place - q.base) / int64(q.plan.Config.Prompts)) }

func (q *Queue) tally(place int64) *Tally {
	k := q.batch(place)
	if q.out[k] == nil {
		q.out[k] = &Tally{}
	}
	return q.out[k]
}

func (q *Queue) batchGroups(k int) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for p := q.first(k); p < q.first(k+1); p++ {
			if g := q.places[p]; g != nil && !yield(g) {
				return
			}
		}
	}
}

func (q *Queue) drained() bool {
	_, _, more := q.order.at(q.cursor)
	return !more
}

func (q *Queue) emit(e Event) {
	if q.plan.OnEvent != nil {
		q.plan.OnEvent(e)
	}
}

func (q *Queue) die(err error) {
	q.dead = err
	q.emit(Event{Kind: Dead, Err: err})
}

// present yields the rollouts that are there.
func present(rollouts []*Rollout) iter.Seq[*Rollout] {
	return func(yield func(*Rollout) bool) {
		for _, r := range rollouts {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// equalScores reports whether the scores have no spread: rewards may differ in what was shaped. A rollout counts once, however many
// samples it has.
func equalScores(rollouts []*Rollout) bool {
	there := slices.Collect(present(rollouts))
	return !slices.ContainsFunc(there, func(r *Rollout) bool { return r.Score != there[0].Score })
}
