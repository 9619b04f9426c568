package rollout

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// Source is a data set: tasks by number, so that a run can resume anywhere in it. Task is called from many
// goroutines at once.
type Source interface {
	Len() int
	Task(i int) (Task, error)
	// Digest names the contents: a position saved for one digest means nothing under another.
	Digest() string
}

// Tasks is a slice as a Source, with a name for its contents.
type Tasks struct {
	List []Task
	Name string
}

// Len is the number of tasks.
func (t Tasks) Len() int { return len(t.List) }

// Task is task i.
func (t Tasks) Task(i int) (Task, error) { return t.List[i], nil }

// Digest is the name.
func (t Tasks) Digest() string { return t.Name }

// OpenFunc opens the tasks to train on and the held-out ones; the latter may be nil.
type OpenFunc func(DataConfig) (train, eval Source, err error)

var (
	sourcesMu sync.Mutex
	sources   = map[string]OpenFunc{"jsonl": openJSONL}
)

// RegisterSource makes open known as [data] source = name. A name that is taken is an error.
func RegisterSource(name string, open OpenFunc) error {
	sourcesMu.Lock()
	defer sourcesMu.Unlock()
	if _, taken := sources[name]; taken || name == "" || open == nil {
		return fmt.Errorf("rollout: source %q is registered already, or has no name or function", name)
	}
	sources[name] = open
	return nil
}

// OpenData opens what c names. eval is nil where c names none.
func OpenData(c DataConfig) (train, eval Source, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	sourcesMu.Lock()
	open, known := sources[c.Source]
	names := slices.Sorted(maps.Keys(sources))
	sourcesMu.Unlock()
	if !known {
		return nil, nil, fmt.Errorf("[data] source = %q is not known; there are %s", c.Source, strings.Join(names, ", "))
	}
	return open(c)
}

// order maps positions in the endless stream of data to task numbers, epoch after epoch. It keeps one epoch's
// permutation, so it is not safe for concurrent use.
type order struct {
	n, epochs int
	shuffle   bool
	seed      uint64
	epoch     int64
	perm      []int
}

// at is the task number at position pos, and its epoch; ok is false behind the end of the last epoch.
func (o *order) at(pos int64) (index int, epoch int64, ok bool) {
	epoch, i := pos/int64(o.n), int(pos%int64(o.n))
	if o.epochs > 0 && epoch >= int64(o.epochs) {
		return 0, 0, false
	}
	if !o.shuffle {
		return i, epoch, true
	}
	if o.perm == nil || o.epoch != epoch {
		o.epoch, o.perm = epoch, rand.New(rand.NewPCG(o.seed, uint64(epoch))).Perm(o.n)
	}
	return o.perm[i], epoch, true
}
