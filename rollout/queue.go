package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Plan is what Queue and Collector need to know of a run.
type Plan struct {
	Config  Config
	Data    DataConfig
	Source  Source
	Greedy  bool        // one more rollout for each group, sampled greedily: a baseline for its rewards, see Batch.Greedy
	Limit   int         // largest age of a trained token, in versions; 0: synchronous
	Seed    uint64      // of the run
	Version int32       // of the policy, at the start or when resumed
	State   *State      // to resume from; nil: from the start
	OnEvent func(Event) // told of everything, in order, one at a time; must not call back; may be nil
}

// Queue decides which rollout starts next and which groups make the next batch. It is pure: no goroutine, no time,
// not safe for concurrent use. Its places number groups in the order of admission.
type Queue struct {
	plan     Plan
	order    order
	restored int32 // version that the run started or resumed with
	version  int32
	base     int64 // first place of this run; batch k has places base + k·prompts and on
	admitted int64 // next new place
	cursor   int64 // next position of the data
	taken    int   // batches
	skipped  int   // of them, without an optimizer step
	places   map[int64]*group
	groups   map[int64]*group // by position in the data; the same groups
	starting []*group         // with samples not yet started, by place
	out      map[int]*Tally   // by batch
	dead     error
	ended    bool
}

// group is one task's rollouts.
type group struct {
	pos, place, epoch int64
	task              int
	started, numEnded int
	failed            []string   // the kinds of failures
	ended             []bool     // [samples], then the greedy rollout if there is one
	rollouts          []*Rollout // [samples] nil where running or failed
	greedy            *Rollout   // likewise
}

func (g *group) complete() bool { return g.numEnded == len(g.ended) }

// Batch is what one optimizer step, or a few, learn from.
type Batch struct {
	// Groups has Config.Prompts groups of Config.Samples rollouts, in the order of the data. Only the last batch of
	// finite data can have fewer groups, and only with PartialGroups can a group have fewer rollouts.
	Groups [][]*Rollout
	// Greedy has the greedy rollout of each group, nil without Plan.Greedy. It is in no group, mean or filter, and has no
	// token to train on.
	Greedy     []*Rollout
	Failed     int            // rollouts that failed on the way, greedy ones included
	Kinds      map[string]int // of them, by the kind of their Failure
	Filtered   int            // groups taken out because all their scores were equal
	RewardMean float64        // over the rollouts of complete groups, before filtering, each once
}

// NewQueue checks the plan and starts or resumes a queue.
func NewQueue(p Plan) (*Queue, error) {
	err := errors.Join(p.Config.Validate(), p.Data.Validate(),
		need(p.Source != nil && p.Source.Len() > 0, "rollout: the data has no task"),
		need(p.Limit >= 0 && p.Version >= 0, "rollout: staleness limit %d and version %d must not be negative", p.Limit, p.Version))
	if err != nil {
		return nil, err
	}
	q := &Queue{
		plan: p, restored: p.Version, version: p.Version,
		order:  order{n: p.Source.Len(), epochs: p.Data.Epochs, shuffle: p.Data.Shuffle, seed: p.Data.Seed},
		places: map[int64]*group{}, groups: map[int64]*group{}, out: map[int]*Tally{},
	}
	if p.State != nil {
		if err := q.restore(*p.State); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// Admit hands out the next rollout to start, without its task, and that task's number in the source; ok is false if
// none may start now.
func (q *Queue) Admit() (s Spec, task int, ok bool) {
	if q.dead == nil && len(q.starting) == 0 && q.admits(q.admitted) && q.place(q.admitted, q.cursor) {
		q.admitted++
	}
	if q.dead != nil || len(q.starting) == 0 || !q.admits(q.starting[0].place) { // the last: resumed with a smaller limit
		return Spec{}, 0, false
	}
	g := q.starting[0]
	sample := g.started
	if g.started++; g.started == len(g.ended) {
		q.starting = q.starting[1:]
	}
	s = Spec{
		ID: g.pos*int64(len(g.rollouts)) + int64(sample), Group: g.pos, Place: g.place,
		Seed:     MixSeed(q.plan.Seed, uint64(g.task), uint64(g.epoch), uint64(sample)),
		Sampling: q.plan.Config.Sampling(),
	}
	if s.Greedy = sample == len(g.rollouts); s.Greedy { // outside the others' numbers, so that these are the same without it
		s.ID, s.Sampling.Temperature = -1-g.pos, 0
	}
	return s, g.task, true
}

// admits is the rule in the package doc.
func (q *Queue) admits(place int64) bool {
	steps := int64(q.version-q.restored) + int64(q.skipped)
	return place-q.base < (steps+int64(q.plan.Limit)+1)*int64(q.plan.Config.Prompts)
}

// place starts the task at a position of the data at a place; false at the end of the data.
func (q *Queue) place(place, pos int64) bool {
	task, epoch, ok := q.order.at(pos)
	if !ok {
		return false
	}
	q.cursor = max(q.cursor, pos+1)
	n := q.plan.Config.Samples
	g := &group{pos: pos, place: place, epoch: epoch, task: task, ended: make([]bool, n, n+1), rollouts: make([]*Rollout, n)}
	if q.plan.Greedy {
		g.ended = append(g.ended, false)
	}
	q.places[place], q.groups[pos] = g, g
	i, _ := slices.BinarySearchFunc(q.starting, place, func(g *group, p int64) int { return cmp.Compare(g.place, p) })
	q.starting = slices.Insert(q.starting, i, g)
	return true
}

// Running reports whether a group waits for rollouts. One that was taken out does not.
func (q *Queue) Running(group int64) bool {
	g := q.groups[group]
	return g != nil && !g.complete()
}

// Put takes in how an admitted rollout ended: Done, Failed or Dead. What comes for a group that was taken out is dropped.
func (q *Queue) Put(e Event) {
	if q.dead != nil {
		return
	}
	if e.Kind == Dead {
		q.die(e.Err)
		return
	}
	g := q.groups[e.Spec.Group]
	sample := e.Spec.ID - e.Spec.Group*int64(q.plan.Config.Samples)
	if e.Spec.Greedy {
		sample = int64(q.plan.Config.Samples)
	}
	if g == nil || sample < 0 || sample >= int64(g.started) || g.ended[sample] || e.Spec.Greedy != (sample == int64(len(g.rollouts))) {
		return
	}
	g.ended[sample] = true
	g.numEnded++
	e.Place = g.place
	q.emit(e)
	switch {
	case e.Kind != Done:
		g.failed = append(g.failed, failureKind(e.Err))
	case e.Spec.Greedy:
		g.greedy = e.Rollout
	default:
		g.rollouts[sample] = e.Rollout
	}
	lost := e.Kind != Done && (!q.plan.Config.PartialGroups || e.Spec.Greedy) || len(g.failed) == len(g.rollouts)
	if dull := g.complete() && q.plan.Config.FilterEqual && equalScores(g.rollouts); lost || dull {
		q.takeOut(g, !lost)
	}
	q.checkBounds(g, e.Err)
}

// takeOut makes room for the next task at g's place. At the end of the data the place stays empty.
func (q *Queue) takeOut(g *group, filtered bool) {
	t := q.tally(g.place)
	t.Out++
	t.addFailed(g)
	if filtered {
		t.Filtered++
		t.addRewards(g)
		q.emit(Event{Kind: Filtered, Place: g.place})
	}
	delete(q.groups, g.pos)
	delete(q.places, g.place)
	q.starting = slices.DeleteFunc(q.starting, func(s *group) bool { return s == g })
	q.place(g.place, q.cursor)
}

// checkBounds ends the run when g's batch loses too much.
func (q *Queue) checkBounds(g *group, last error) {
	c, k := q.plan.Config, q.batch(g.place)
	t := *q.tally(g.place)
	for each := range q.batchGroups(k) {
		t.addFailed(each)
	}
	kinds := strings.TrimPrefix(fmt.Sprint(t.Kinds), "map") // by name: [exit:3 timeout:1]
	if size := c.Prompts * len(g.ended); float64(t.Failed) > c.MaxFailed*float64(size) {
		q.die(fmt.Errorf("rollout: %d rollouts failed for one batch of %d, more than max_failed = %v allows: %s; the last: %w",
			t.Failed, size, c.MaxFailed, kinds, last))
	} else if t.Out > c.MaxRefill*c.Prompts {
		q.die(fmt.Errorf("rollout: %d groups taken out for one batch of %d (%d with equal scores, %d with failures: %s), more than "+
			"max_refill = %d batches: %w", t.Out, c.Prompts, t.Filtered, t.Out-t.Filtered, kinds, c.MaxRefill,
			cmp.Or(last, errors.New("the data gives no signal"))))
	}
}

// Take gives the next batch once all its groups are complete; ok is false before that. ErrEndOfData follows the last.
func (q *Queue) Take() (b Batch, ok bool, err error) {
	for q.dead == nil {
		var rows []*group
		first := q.first(q.taken)
		for p := first; p < q.first(q.taken+1); p++ {
			g := q.places[p]
			if g == nil && !q.drained() || g != nil && !g.complete() {
				return Batch{}, false, nil
			}
			if g != nil {
				rows = append(rows, g)
			}
		}
		if len(rows) == 0 && q.admitted <= first {
			if !q.ended {
				q.ended = true
				q.emit(Event{Kind: EndOfData})
			}
			return Batch{}, false, ErrEndOfData
		}
		q.taken++
		if len(rows) > 0 {
			return q.assemble(rows), true, nil
		}
		q.Skip() // every place was emptied at the end of the data
	}
	return Batch{}, false, q.dead
}

// assemble sorts by position in the data, so that a batch does not depend on which replacement came first.
func (q *Queue) assemble(rows []*group) Batch {
	t := *q.tally(rows[0].place)
	slices.SortFunc(rows, func(a, b *group) int { return cmp.Compare(a.pos, b.pos) })
	var b Batch
	for _, g := range rows {
		t.addFailed(g)
		t.addRewards(g)
		b.Groups = append(b.Groups, slices.Collect(present(g.rollouts)))
		if q.plan.Greedy {
			b.Greedy = append(b.Greedy, g.greedy)
		}
	}
	b.Failed, b.Kinds, b.Filtered, b.RewardMean = t.Failed, t.Kinds, t.Filtered, t.Reward/float64(t.Rollouts)
	return b
}

// SetVersion says that an optimizer step on the batch taken made version v, which opens admission.
func (q *Queue) SetVersion(v int32) error {
	if v < q.version {
		return fmt.Errorf("rollout: policy version %d after %d", v, q.version)
	}
	q.version = v
	q.retire()
	return nil
}

// Skip says that the batch taken made no optimizer step. Admission opens as after one, without a new version.
func (q *Queue) Skip() {
	q.skipped++
	q.retire()
}
