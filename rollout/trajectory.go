package rollout

import (
	"errors"
	"fmt"
	"slices"
)

// Trajectory is one segment or branch of a rollout, hence one training sample: a sequence of tokens that only grows.
// The zero value is empty and ready. It belongs to one goroutine at a time.
type Trajectory struct {
	ids, versions []int32
	mask          []bool
	logp, temp    []float32 // these five have equal length
	images        []Image
	routed        Routed      // [len(ids), Layers, K] once a completion had any
	top           [][]TopLogP // [len(ids)] once a completion had any
	parent        *Trajectory
	shared        int
	sealed        bool
}

// errSealed refuses growth: a sealed trajectory may already be read by the trainer.
var errSealed = errors.New("rollout: the trajectory is sealed")

// Context appends tokens that the policy did not choose (prompt, template delta, tool result, forced prefix), with
// mask 0. The images' Start counts from the first of ids.
func (t *Trajectory) Context(ids []int32, images ...Image) error {
	if t.sealed {
		return errSealed
	}
	if i := slices.IndexFunc(ids, func(id int32) bool { return id < 0 }); i >= 0 {
		return fmt.Errorf("rollout: context token %d: id %d is negative", i, ids[i])
	}
	end := 0
	for i, m := range images {
		if m.Len <= 0 || m.Start < end || m.Start > len(ids)-m.Len {
			return fmt.Errorf("rollout: image %d at %d, length %d, overlaps the one before or leaves the %d tokens", i, m.Start, m.Len,
				len(ids))
		}
		end = m.Start + m.Len
	}
	for _, m := range images {
		m.Start += len(t.ids)
		t.images = append(t.images, m)
	}
	for _, id := range ids {
		t.push(id, -1, 0, 1, false)
	}
	t.level()
	return nil
}

// Append appends what a generator made of t. It refuses a completion of anything but t's tokens as they are now,
// tokens that no generator minted, and a sealed t; then t is unchanged. Exact tokens get mask 1, others mask 0.
func (t *Trajectory) Append(c Completion) error {
	if err := t.checkAppend(c); err != nil {
		return err
	}
	numContext := len(t.ids)
	for _, g := range c.Tokens {
		temp := g.temp
		if temp == 0 {
			temp = 1 // the temperature that a greedy token's log-prob is at
		}
		t.push(g.id, g.version, g.logp, temp, g.exact)
	}
	if c.Top != nil && t.top == nil {
		t.top = make([][]TopLogP, numContext)
	}
	for _, top := range c.Top {
		t.top = append(t.top, slices.Clone(top))
	}
	if t.routed.row() == 0 {
		t.routed.Layers, t.routed.K = c.Routed.Layers, c.Routed.K
	}
	t.level()
	// A row that is known stays: it is the routing that the log-prob came from. The row of the token before a
	// completion becomes known only now.
	row := c.Routed.row()
	for i := range len(c.Routed.Experts) / max(row, 1) {
		if dst := t.routed.Experts[i*row : (i+1)*row]; dst[0] == UnknownExpert {
			copy(dst, c.Routed.Experts[i*row:])
		}
	}
	return nil
}

func (t *Trajectory) checkAppend(c Completion) error {
	switch unminted := slices.IndexFunc(c.Tokens, func(g Generated) bool { return !g.minted }); {
	case t.sealed:
		return errSealed
	case c.Prefix != prefix(t.ids, t.images):
		return fmt.Errorf("rollout: the completion continues another prefix than the trajectory's %d tokens", len(t.ids))
	case unminted >= 0:
		return fmt.Errorf("rollout: token %d of the completion was not minted by a generator", unminted)
	case c.Finish != FinishStop && c.Finish != FinishLength && c.Finish != FinishCancelled:
		return fmt.Errorf("rollout: unknown finish %q of a completion", c.Finish)
	case c.NumStop < 0 || c.NumStop > len(c.Tokens):
		return fmt.Errorf("rollout: %d of %d tokens belong to the stop", c.NumStop, len(c.Tokens))
	case len(c.Top) != 0 && len(c.Top) != len(c.Tokens):
		return fmt.Errorf("rollout: top log-probs for %d of %d tokens", len(c.Top), len(c.Tokens))
	}
	for i, top := range c.Top {
		for _, p := range top {
			if p.ID < 0 || !finite(float64(p.LogP)) {
				return fmt.Errorf("rollout: token %d: top log-prob of id %d is %v", i, p.ID, p.LogP)
			}
		}
	}
	r, known, rows := c.Routed, t.routed, max(len(t.ids)+len(c.Tokens)-1, 0)
	switch {
	case r.Layers < 0 || r.K < 0 || (r.Layers == 0) != (r.K == 0):
		return fmt.Errorf("rollout: routed experts of %d layers, %d a token", r.Layers, r.K)
	case r.row() > 0 && known.row() > 0 && (r.Layers != known.Layers || r.K != known.K):
		return fmt.Errorf("rollout: routed experts of %d layers × %d after %d × %d", r.Layers, r.K, known.Layers, known.K)
	case len(r.Experts) != rows*r.row():
		return fmt.Errorf("rollout: %d routed experts, want %d positions × %d layers × %d", len(r.Experts), rows, r.Layers, r.K)
	}
	return nil
}

func (t *Trajectory) push(id, version int32, logp, temp float32, mask bool) {
	t.ids = append(t.ids, id)
	t.versions = append(t.versions, version)
	t.logp = append(t.logp, logp)
	t.temp = append(t.temp, temp)
	t.mask = append(t.mask, mask)
}

// level brings the optional per-token slices to the length of ids.
func (t *Trajectory) level() {
	for t.top != nil && len(t.top) < len(t.ids) {
		t.top = append(t.top, nil)
	}
	for len(t.routed.Experts) < len(t.ids)*t.routed.row() {
		t.routed.Experts = append(t.routed.Experts, UnknownExpert)
	}
}

// Request asks for t's continuation. It shares no memory with t.
func (t *Trajectory) Request(s Sampling, m Matcher) Request {
	return Request{IDs: slices.Clone(t.ids), Images: slices.Clone(t.images), Sampling: s, Stop: m}
}

// Fork starts a branch from t's first n tokens. They have mask 0 in the branch, as t trains them, and keep their
// log-probs and versions. A cut inside an image is an error. t may be sealed; the branch is not.
func (t *Trajectory) Fork(n int) (*Trajectory, error) {
	if n < 0 || n > len(t.ids) {
		return nil, fmt.Errorf("rollout: fork at %d of a trajectory of %d tokens", n, len(t.ids))
	}
	f := &Trajectory{parent: t, shared: n, mask: make([]bool, n)}
	for _, m := range t.images {
		if m.Start < n && n < m.Start+m.Len {
			return nil, fmt.Errorf("rollout: fork at %d lies inside the image at %d, length %d", n, m.Start, m.Len)
		}
		if m.Start < n {
			f.images = append(f.images, m)
		}
	}
	// What is written once is shared; the clipped capacity makes either side's next append copy.
	f.ids, f.versions = t.ids[:n:n], t.versions[:n:n]
	f.logp, f.temp = t.logp[:n:n], t.temp[:n:n]
	if t.top != nil {
		f.top = t.top[:n:n]
	}
	f.routed = t.routed
	f.routed.Experts = slices.Clone(t.routed.Experts[:n*t.routed.row()])
	return f, nil
}

// Parent is the trajectory that t was forked from, nil if none, and the number of tokens they share.
func (t *Trajectory) Parent() (parent *Trajectory, shared int) { return t.parent, t.shared }

// Seal ends t's growth. Only sealed trajectories enter a Rollout.
func (t *Trajectory) Seal() { t.sealed = true }

// Len is the number of tokens.
func (t *Trajectory) Len() int { return len(t.ids) }

// NumTrained is the number of tokens with mask 1.
func (t *Trajectory) NumTrained() int {
	n := 0
	for _, m := range t.mask {
		if m {
			n++
		}
	}
	return n
}

// Tokens is a copy of a trajectory's contents. The five slices have one entry a token; Top is nil or has too.
// Context tokens have version −1, log-prob 0 and temperature 1. Temp is the temperature that LogP is at.
type Tokens struct {
	IDs, Versions []int32
	Mask          []bool
	LogP, Temp    []float32
	Images        []Image
	Routed        Routed // [tokens, Layers, K], UnknownExpert where a position has not been through the model
	Top           [][]TopLogP
}

// Tokens copies t's contents.
func (t *Trajectory) Tokens() Tokens {
	k := Tokens{
		IDs: slices.Clone(t.ids), Versions: slices.Clone(t.versions), Mask: slices.Clone(t.mask),
		LogP: slices.Clone(t.logp), Temp: slices.Clone(t.temp), Images: slices.Clone(t.images), Routed: t.routed,
	}
	k.Routed.Experts = slices.Clone(t.routed.Experts)
	if t.top != nil {
		k.Top = make([][]TopLogP, len(t.top))
		for i, top := range t.top {
			k.Top[i] = slices.Clone(top)
		}
	}
	return k
}
