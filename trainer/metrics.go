package trainer

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Keys of metrics.jsonl that other programs rely on; more may stand beside them.
const (
	KeyStep            = "step"                // completed optimizer steps; in every row
	KeyVersion         = "version"             // policy version after the step's update
	KeyRewardMean      = "reward_mean"         // over rollouts before filtering, each once
	KeyLoss            = "loss"                // as optimized: over all tokens of the step
	KeyGradNorm        = "grad_norm"           // global norm before clipping
	KeyTokensPerSecond = "tokens_per_second"   // sampled for training, per wall second since the last row
	KeyStalenessMax    = "staleness_max"       // largest age, in steps, of a token trained in the step
	KeyLogProbDiffMax  = "logprob_diff_max"    // largest difference of engine and trainer on the probe, nats
	KeyLogProbDiffToks = "logprob_diff_tokens" // tokens of the probe
	KeyEvalScore       = "eval_score"          // mean score of the held-out tasks; in rows of evaluations
)

// RunDir is the folder of one run, held by a lock until Close or the end of the process, whatever ends it.
type RunDir struct {
	Path string
	lock *os.File
}

// OpenRunDir makes root/name if need be and locks it. It fails if the folder cannot be written to, or if another process
// has it, which the error then names.
func OpenRunDir(root, name string) (*RunDir, error) {
	path := filepath.Join(root, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("run folder: %w; choose another with -set log.dir=…", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("run folder is not writable: %w; choose another with -set log.dir=…", err)
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("run folder %s: %w", path, err)
	}
	return &RunDir{Path: path, lock: lock}, nil
}

// lockFile takes the lock of f and writes into it who has it.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 4096)) // only to name it
		return fmt.Errorf("in use by %s; stop it or choose another name with -set name=…",
			cmp.Or(strings.TrimSpace(string(holder)), "another process"))
	}
	if err != nil {
		return fmt.Errorf("cannot lock: %w", err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "process %d (%s)\n", os.Getpid(), filepath.Base(os.Args[0]))
	return err
}

// Close gives the folder free.
func (d *RunDir) Close() error { return d.lock.Close() }

// Metrics appends rows to a run's metrics.jsonl. It is used by one goroutine.
type Metrics struct{ file *os.File }

// OpenMetrics opens metrics.jsonl in the folder and cuts off the rows after the restored step keep, and a last line that
// a killed process left unfinished. keep -1 is a new run: there may be no row of a step, or they would be lost.
func (d *RunDir) OpenMetrics(keep int) (*Metrics, error) {
	f, err := os.OpenFile(filepath.Join(d.Path, "metrics.jsonl"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	size, err := keptSize(f, max(keep, 0))
	info, statErr := f.Stat()
	switch err = cmp.Or(err, statErr); {
	case err == nil && keep < 0 && info.Size() > size:
		err = errors.New("an earlier run, which left no checkpoint, has rows there; choose another name with -set name=…, or delete it")
	case err == nil && keep < 0:
		err = f.Truncate(0)
	case err == nil:
		err = f.Truncate(size)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("metrics: %s: %w", f.Name(), err)
	}
	return &Metrics{f}, nil
}

// keptSize returns the number of bytes up to the first row after step keep.
func keptSize(r io.Reader, keep int) (int64, error) {
	lines, size := bufio.NewReader(r), int64(0)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF { // without its line break a row is unfinished
			return size, nil
		}
		if err != nil {
			return 0, err
		}
		row := struct{ Step *float64 }{}
		if err := json.Unmarshal(line, &row); err != nil || row.Step == nil {
			return 0, fmt.Errorf("line %d is not a row with a step: %.80q", number, line)
		}
		if *row.Step > float64(keep) {
			return size, nil
		}
		size += int64(len(line))
	}
}

// Write appends one row, step first and then the other keys in alphabetical order, and hands it to the system before it
// returns. A row without a step and a value that is NaN or infinite are errors, and nothing is written.
func (m *Metrics) Write(row map[string]float64) error {
	keys := slices.Sorted(maps.Keys(row))
	step := slices.Index(keys, KeyStep)
	if step < 0 {
		return errors.New("metrics: a row without a step")
	}
	var line []byte
	for _, key := range slices.Concat(keys[step:step+1], keys[:step], keys[step+1:]) {
		if !finite(row[key]) {
			return fmt.Errorf("metrics: step %v: %s is %v", row[KeyStep], key, row[key])
		}
		field, _ := json.Marshal(map[string]float64{key: row[key]}) // {"key":1}; finite numbers always marshal
		line = slices.Concat(line, []byte{','}, field[1:len(field)-1])
	}
	line[0] = '{'
	if _, err := m.file.Write(append(line, "}\n"...)); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// Close closes the file.
func (m *Metrics) Close() error { return m.file.Close() }
