package optim

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
)

// array is a nested list of numbers.
type array struct {
	data  []float32
	shape []int
}

func (a *array) UnmarshalJSON(text []byte) error {
	var rows []array
	if err := json.Unmarshal(text, &a.data); err == nil {
		a.shape = []int{len(a.data)}
		return nil
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return err
	}
	a.data = nil
	for _, row := range rows {
		a.data, a.shape = append(a.data, row.data...), append([]int{len(rows)}, row.shape...)
	}
	return nil
}

func (a array) tensor(s *torch.Scope) torch.Tensor { return torch.New(s, a.data, a.shape...) }

type arrays map[string]array

func (a arrays) named(s *torch.Scope) []Named {
	var list []Named
	for _, name := range slices.Sorted(maps.Keys(a)) {
		list = append(list, Named{name, a[name].tensor(s)})
	}
	return list
}

// equal allows the tolerance of each tensor, for large values relative.
func (a arrays) equal(t *testing.T, what string, got []Named, tolerance func(Named) float64) {
	t.Helper()
	if len(a) == 0 || len(got) != len(a) {
		t.Errorf("%s: %d tensors, want %d", what, len(got), len(a))
	}
	for _, g := range got {
		tol := tolerance(g)
		if diff := cmp.Diff(a[g.Name].data, torch.Values[float32](g.Tensor), cmpopts.EquateApprox(tol, tol)); diff != "" {
			t.Errorf("%s, %s: %s", what, g.Name, diff)
		}
	}
}

// exact is the reference's tolerance where bfloat16 plays no part.
func exact(Named) float64 { return 1e-6 }

type args struct {
	LR           float64
	Betas        [2]float64
	Eps          float64
	WeightDecay  float64 `json:"weight_decay"`
	Momentum, Mu float64
	Nesterov     bool
	AdjustTorch  string `json:"adjust_lr_fn"`
	AdjustDion   string `json:"adjust_lr"`
	Polar        *bool  `json:"use_polar_express"`
}

func (a args) config() AdamWConfig { return AdamWConfig{a.Betas[0], a.Betas[1], a.Eps, a.WeightDecay} }

type optimizerCase struct {
	Args   args
	Note   string
	Clip   float64
	Params map[string]arrays           `json:"params_after_step"`
	State  map[string]map[string]array `json:"final_state"`
	Norms  []float64                   `json:"grad_norm_before_clip"`
	LRs    []float64                   `json:"lr_used"`
}

type optimizerReference struct {
	Initial       arrays             `json:"initial_params"`
	Grads         map[string][]array `json:"grads_20_steps"`
	Results       map[string]optimizerCase
	Orthogonalise []struct {
		Param  string
		Matrix array
		Muon   array `json:"torch_newton_schulz"`
		Dion   array `json:"dion_polar_express"`
		Older  array `json:"dion_newton_schulz5"`
	}
	Quadratic struct {
		A, B, X0 array
		AdamW    args
		Loss     []float64 `json:"loss_before_step"`
		X        []array   `json:"x_after_step"`
	}
	Clipping []struct {
		Name    string
		Max     float64 `json:"max_norm"`
		Grads   arrays
		Norm    float64 `json:"total_norm"`
		Clipped arrays
	}
}

func readOptimizers(t *testing.T) optimizerReference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "reference", "optimizers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref optimizerReference
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Results) == 0 || len(ref.Quadratic.X) == 0 || len(ref.Clipping) == 0 || len(ref.Orthogonalise) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}

// names lists the cases of one kind; a case of neither kind is an error.
func (ref optimizerReference) names(t *testing.T, kind string) []string {
	t.Helper()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(ref.Results)) {
		if strings.HasPrefix(name, kind) {
			names = append(names, name)
		} else if !strings.HasPrefix(name, "adamw/") && !strings.HasPrefix(name, "muon/") {
			t.Errorf("no test knows %s", name)
		}
	}
	if len(names) == 0 {
		t.Fatal("the reference has no case of", kind)
	}
	return names
}

// replay makes the reference's 20 steps and compares parameters on the way and the state at the end.
func (ref optimizerReference) replay(t *testing.T, s *torch.Scope, c optimizerCase, params []Named, o Optimizer,
	tolerance func(param Named, step int) float64) {
	t.Helper()
	absent, steps := absences(t, c.Note), 0
	for i := range ref.Grads[params[0].Name] {
		var grads []Named
		for _, p := range params {
			if !slices.Contains(absent[p.Name], i) {
				grads = append(grads, Named{p.Name, ref.Grads[p.Name][i].tensor(s)})
			} else if i%2 == 0 { // both ways of being absent
				grads = append(grads, Named{Name: p.Name})
			}
		}
		lr := c.Args.LR
		if c.LRs != nil {
			lr = c.LRs[i]
		}
		if c.Clip > 0 {
			norm, err := ClipGradNorm(s, grads, c.Clip)
			if err != nil || math.Abs(norm-c.Norms[i]) > 1e-6*c.Norms[i] {
				t.Errorf("norm %v, want %v (%v)", norm, c.Norms[i], err)
			}
		}
		if err := o.Step(s, grads, lr); err != nil {
			t.Fatal(err)
		}
		if want, ok := c.Params[strconv.Itoa(i+1)]; ok {
			steps++
			want.equal(t, fmt.Sprintf("after step %d", i+1), params, func(n Named) float64 { return tolerance(n, i+1) })
		}
	}
	if steps == 0 {
		t.Error("nothing was compared")
	}
	want := arrays{}
	for p, state := range c.State {
		for kind, a := range state {
			if _, ok := state["variance"]; ok { // AdamW's in dion's words
				kind = map[string]string{"momentum": "exp_avg", "variance": "exp_avg_sq"}[kind]
			}
			want[kind+"."+p] = a
		}
	}
	moments := slices.DeleteFunc(o.State(), func(n Named) bool { return strings.HasPrefix(n.Name, "step.") })
	want.equal(t, "final state", moments, exact)
}

// absences reads "bias has no gradient at steps 0..2 and 10 (0-based)".
func absences(t *testing.T, note string) map[string][]int {
	t.Helper()
	absent := map[string][]int{}
	m := regexp.MustCompile(`(\w+) has no gradient at steps (\d+)\.\.(\d+) and (\d+)`).FindStringSubmatch(note)
	if m == nil && note != "" && note != dionNote {
		t.Fatalf("the note %q is not understood", note)
	}
	if m != nil {
		var n [3]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[i+2])
		}
		for i := n[0]; i <= n[1]; i++ {
			absent[m[1]] = append(absent[m[1]], i)
		}
		absent[m[1]] = append(absent[m[1]], n[2])
	}
	return absent
}
